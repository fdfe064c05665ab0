"""OpenVINO GenAI's continuous batching, asked by lines of JSON: what `line_target` speaks to.

Runs in the peer's own environment and imports nothing of Octavo. Standard input brings {"id", "prompt", "num_tokens"};
standard output gets {"id", "num_tokens", "is_finished"} whenever tokens of an answer have been made. Greedy, bfloat16.
"""

import json
import queue
import sys
import threading
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

KV_GIB = 1
MAX_NUM_SEQS = 32
MAX_NUM_BATCHED_TOKENS = 4096


def load(model: str) -> Any:
    settings = openvino_genai.SchedulerConfig()
    settings.cache_size = KV_GIB
    settings.max_num_seqs = MAX_NUM_SEQS
    settings.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    settings.dynamic_split_fuse = True
    settings.enable_prefix_caching = True
    return openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})


def read_lines(inbox: "queue.SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        inbox.put(line)
    inbox.put(None)


class Engine:
    """The pipeline and the requests that it has not finished."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._handles: dict[int, Any] = {}
        self._missing: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._handles

    def add(self, line: str) -> None:
        asked = json.loads(line)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = asked["num_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        tokens = openvino.Tensor(np.array([asked["prompt"]], dtype=np.int64))
        self._handles[asked["id"]] = self._pipeline.add_request(asked["id"], tokens, config)
        self._missing[asked["id"]] = asked["num_tokens"]

    def step(self) -> None:
        self._pipeline.step()
        for request_id, handle in list(self._handles.items()):
            if handle.can_read():
                self._tell(request_id, sum(len(output.generated_ids) for output in handle.read().values()))

    def _tell(self, request_id: int, num_tokens: int) -> None:
        self._missing[request_id] -= num_tokens
        is_finished = self._missing[request_id] <= 0
        if is_finished:
            del self._handles[request_id], self._missing[request_id]
        print(json.dumps({"id": request_id, "num_tokens": num_tokens, "is_finished": is_finished}), flush=True)


def main() -> None:
    engine = Engine(load(sys.argv[1]))
    inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(inbox,), daemon=True).start()
    while True:
        while engine.is_idle or not inbox.empty():
            line = inbox.get()
            if line is None:
                return
            engine.add(line)
        engine.step()


if __name__ == "__main__":
    main()
