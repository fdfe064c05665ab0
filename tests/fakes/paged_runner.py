"""A model runner without a model, behind the real link, executor and mirror of a worker.

What it keeps in a slot is the hash of the whole prefix up to its token, as K/V would depend on it; the next token is a
function of that hash (`paged_worker.continuation`). Every slot that a row reads must hold what was written for it.
"""

import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState, Indices
from gpu_worker.core.step import PositionLogprobs, Step
from gpu_worker.identity import Fingerprint, Identity
from tests.fakes.paged_worker import NUM_TOKEN_IDS, extended

BLOCK_SIZE = 16
MAX_MODEL_LEN = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The fields of model_runner.Execution, which brings torch along."""

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    started_ns: int
    prepared_ns: int
    forwarded_ns: int
    sampled_ns: int


class PagedRunner:
    """What a StepExecutor runs."""

    def __init__(self, *, num_blocks: int, step_s: float = 0.0, faulty_seqs: Collection[int] = ()) -> None:
        self.state = BatchState(
            block_size=BLOCK_SIZE, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN, vocab_size=NUM_TOKEN_IDS
        )
        self._written = np.zeros(num_blocks * BLOCK_SIZE, dtype=np.int64)
        self._step_s = step_s
        self._faulty_seqs = faulty_seqs  # steps that leave rubbish in their slots and fail

    def execute(self, step: Step, launched: Callable[[], None]) -> Execution:
        started_ns = time.perf_counter_ns()
        rows = self.state.apply(step)
        batch = input_batch.plan(self.state, rows)
        launched()
        time.sleep(self._step_s)
        for slot, count in zip(rows.slots.tolist(), rows.num_scheduled_tokens.tolist(), strict=True):
            self._write(slot, count)
        if step.seq in self._faulty_seqs:
            self._written[batch.slot_mapping] = -1
            raise RuntimeError("the device failed")
        sampled = np.array([self._sample(slot) for slot in batch.sampled_slots.tolist()], dtype=np.int64)
        self.state.advance(rows, batch.sampled_slots, sampled)
        now_ns = time.perf_counter_ns()
        return Execution(
            token_ids=tuple(sampled.tolist()),
            logprobs=(),
            num_rows=batch.num_rows,
            num_decode_rows=batch.num_decode_rows,
            num_tokens=batch.num_tokens,
            started_ns=started_ns,
            prepared_ns=started_ns,
            forwarded_ns=now_ns,
            sampled_ns=now_ns,
        )

    def _write(self, slot: int, count: int) -> None:
        start = int(self.state.num_computed_tokens[slot])
        places = self._places(slot, start + count)
        prefix = int(self._written[places[start - 1]]) if start else 0
        for position in range(start, start + count):
            prefix = extended(prefix, int(self.state.token_ids[slot, position]))
            self._written[places[position]] = prefix

    def _sample(self, slot: int) -> int:
        num_tokens = int(self.state.num_tokens[slot])
        token_ids = self.state.token_ids[slot, :num_tokens].tolist()
        expected = list(itertools.accumulate(token_ids, extended, initial=0))[1:]
        found = self._written[self._places(slot, num_tokens)].tolist()
        assert found == expected, f"request {self.state.request(slot).request_id} reads what was not written for it"
        return expected[-1] % NUM_TOKEN_IDS

    def _places(self, slot: int, num_tokens: int) -> Indices:
        positions = np.arange(num_tokens)
        block_ids: Indices = self.state.block_table[slot, positions // BLOCK_SIZE].astype(np.int64)
        return block_ids * BLOCK_SIZE + positions % BLOCK_SIZE


def an_identity(worker_id: str, num_blocks: int) -> Identity:
    """Agrees with `worker_messages.a_hello`."""
    return Identity(
        worker_id=worker_id,
        model_name="fake",
        fingerprint=Fingerprint(
            hash_scheme=1,
            model_digest=b"m" * 32,
            tokenizer_digest=b"t" * 32,
            block_size=BLOCK_SIZE,
            kv_dtype="float32",
            kv_layout="nb2hsd",
        ),
        max_model_len=MAX_MODEL_LEN,
        vocab_size=NUM_TOKEN_IDS,
        num_blocks=num_blocks,
        max_num_batched_tokens=2048,
        device="cpu",
        dtype="float32",
        attention_backend="fake",
        weight_bytes=0,
        kv_cache_bytes=0,
    )
