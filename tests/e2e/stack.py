"""A whole Octavo as a user starts it: `octavo serve` on free ports, and calls to its public gRPC and HTTP ports."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import httpx

from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from octavo.kvcache.v1 import kvcache_pb2 as kv
from octavo.kvcache.v1.kvcache_pb2_grpc import KVCacheServiceStub

START_LIMIT_S = 90.0  # the shared machines of CI start slowly
STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One generation, as its events told it."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    num_cached_tokens: int
    num_preemptions: int
    arrivals_s: list[float]  # monotonic time of each chunk


class Stack:
    """`octavo serve FLAGS` with fp32 numerics unless told otherwise; a context manager."""

    def __init__(self, folder: Path, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        self.http_port, self.grpc_port = free_port(), free_port()
        self.log = folder / f"serve-{self.http_port}.log"
        self._runtime = Path(tempfile.mkdtemp(prefix="octavo"))  # pytest's folders are too deep for a socket's path
        self.environ = {**os.environ, "XDG_RUNTIME_DIR": str(self._runtime), **(environ or {})}
        if "--dtype" not in flags:
            flags = (*flags, "--dtype", "float32")
        self._argv = [sys.executable, "-m", "octavo.cli", "serve", *flags]
        self._argv += ["--port", str(self.http_port), "--grpc-port", str(self.grpc_port), "--metrics-port", "0"]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log, env=self.environ)
        deadline = time.monotonic() + START_LIMIT_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"octavo serve did not become ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        status = self.stop()
        shutil.rmtree(self._runtime)
        assert status == 0 or error is not None, f"octavo serve ended with {status}:\n{self.log.read_text()[-4000:]}"

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """SIGINT, as Ctrl-C gives; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_LIMIT_S)

    @property
    def state(self) -> dict[str, object]:
        """What `octavo serve` wrote down for other commands: addresses and process ids."""
        (file,) = self._runtime.glob("octavo/serve-*/serve.json")
        state: dict[str, object] = json.loads(file.read_text())
        return state

    def pool_figures(self) -> kv.PoolFigures:
        """The pools of all workers together, as the KV cache service counts them now."""
        with grpc.insecure_channel(str(self.state["kvcache_addr"])) as channel:
            pools = KVCacheServiceStub(channel).GetStats(kv.GetStatsRequest(), timeout=10).pools
        counted = ("num_blocks", "num_free", "num_cached", "num_held")
        return kv.PoolFigures(**{name: sum(getattr(pool.figures, name) for pool in pools) for name in counted})

    def tokenize(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a text, or of a chat with its template."""
        body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
        answer = httpx.post(f"{self.url}/tokenize", json=body, timeout=30)
        answer.raise_for_status()
        ids: list[int] = answer.json()["tokens"]
        return ids

    def generate(self, prompts: Sequence[Sequence[int]], *, max_tokens: int, at_once: int = 1) -> list[Answer]:
        """Greedy answers over gRPC, `at_once` in flight, in the order of the prompts. Ends of sequence are ignored."""

        async def run() -> list[Answer]:
            gate = asyncio.Semaphore(at_once)
            async with grpc.aio.insecure_channel(self.target) as channel:
                return await asyncio.gather(*(one(channel, gate, ids) for ids in prompts))

        async def one(channel: grpc.aio.Channel, gate: asyncio.Semaphore, ids: Sequence[int]) -> Answer:
            async with gate:
                return await collect(channel, greedy(ids, max_tokens=max_tokens))

        return asyncio.run(run())


def greedy(ids: Sequence[int], *, max_tokens: int, ignore_eos: bool = True) -> pb.GenerateRequest:
    """A request for the most likely tokens, with ids and logprobs."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StopParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
        output=pb.OutputOptions(token_ids=True, top_logprobs=0),
    )


async def collect(
    channel: grpc.aio.Channel, request: pb.GenerateRequest, *, on_first_token: Callable[[], None] = lambda: None
) -> Answer:
    """Read a stream to its end."""
    text, reason, cached, preemptions = "", "", 0, 0
    token_ids: list[int] = []
    logprobs: list[float] = []
    arrivals_s: list[float] = []
    async for event in InferenceServiceStub(channel).Generate(request, timeout=300):
        match event.WhichOneof("event"):
            case "started":
                cached = event.started.cached_tokens
            case "chunk":
                text += event.chunk.text
                if not token_ids:
                    on_first_token()
                token_ids += event.chunk.token_ids
                logprobs += [position.sampled.logprob for position in event.chunk.logprobs]
                arrivals_s.append(time.monotonic())
                reason = pb.FinishReason.Name(event.chunk.finish_reason).removeprefix("FINISH_REASON_")
            case "finished":
                preemptions = event.finished.timing.preemption_count
    return Answer(
        text=text,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reason,
        num_cached_tokens=cached,
        num_preemptions=preemptions,
        arrivals_s=arrivals_s,
    )


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
