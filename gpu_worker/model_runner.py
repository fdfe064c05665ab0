"""Runs one step on the device: plan, forward, sample, feed back. Holds the model and the mirror.

Knows nothing of sessions, sequence numbers or gRPC; one thread calls it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_worker import sampler
from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.step import BadStep, PositionLogprobs, Step
from gpu_worker.models.interface import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a step that ran gave, and the moments between its phases (perf_counter_ns)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    started_ns: int
    prepared_ns: int
    forwarded_ns: int
    sampled_ns: int


class ModelRunner:
    """The compute side of a worker."""

    def __init__(self, model: Model, state: BatchState, *, max_num_batched_tokens: int) -> None:
        self.state = state
        self._model = model
        self._max_num_batched_tokens = max_num_batched_tokens

    def execute(self, step: Step, launched: Callable[[], None] | None = None) -> Execution:
        """Run a step, or raise BadStep with no memory touched; then drop the step's requests from `state`.

        `launched` is called just before the forward pass.
        """
        started_ns = time.perf_counter_ns()
        rows = self.state.apply(step)
        num_tokens = int(rows.num_scheduled_tokens.sum())
        if num_tokens > self._max_num_batched_tokens:
            raise BadStep(
                f"step {step.seq} has {num_tokens} tokens; this worker takes {self._max_num_batched_tokens} "
                "(--max-num-batched-tokens)"
            )
        batch = input_batch.plan(self.state, rows)
        with torch.inference_mode():
            forward = self._model.prepare(batch)
            if launched is not None:
                launched()
            prepared_ns = time.perf_counter_ns()
            logits = forward()
            forwarded_ns = time.perf_counter_ns()
            drawn = sampler.sample(logits, self.state, batch.sampled_slots)
        self.state.advance(rows, batch.sampled_slots, drawn.token_ids)
        return Execution(
            token_ids=tuple(drawn.token_ids.tolist()),
            logprobs=drawn.logprobs,
            num_rows=batch.num_rows,
            num_decode_rows=batch.num_decode_rows,
            num_tokens=num_tokens,
            started_ns=started_ns,
            prepared_ns=prepared_ns,
            forwarded_ns=forwarded_ns,
            sampled_ns=time.perf_counter_ns(),
        )

    def warm_up(self) -> None:
        """Run the model once for one token and once for a chunk, reading and writing the null block only."""
        for num_tokens in (1, min(64, self._max_num_batched_tokens, self.state.max_model_len)):
            batch = input_batch.of_null_block(num_tokens, self.state.block_size)
            with torch.inference_mode():
                self._model.prepare(batch)()
