"""Owns one request: its token ids, how far it has come, its status, and the rules by which it ends.

Knows neither other requests nor blocks beyond the table it was given.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_service.core import slot_digest
from scheduler_service.core.plan import Identity


class Status(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"
    WAITING_FOR_REMOTE_KV = "waiting_for_remote_kv"
    RUNNING = "running"
    PREEMPTED = "preempted"
    STOPPED = "stopped"
    LENGTH = "length"
    ABORTED = "aborted"
    REJECTED = "rejected"
    ERROR = "error"


class Entry(enum.Enum):
    """How a request comes to a worker."""

    NEW = "new"  # behind everybody of its class, if the queue has room
    MOVED = "moved"  # it waited on another worker: by its arrival; the queue's bound was met there
    BACK = "back"  # its worker is gone: before everybody else of its class


MAX_FAULTS: Final = 3  # consecutive faulted steps or worker deaths that end a request as POISONED
NUM_SHARED_FAULTS: Final = 2  # those that it may have had company in: the next try, its last, is its own
NUM_CLEARING_TOKENS: Final = 2  # in a row: one of computing again what is known, one of going on from there

SET_ASIDE = frozenset({Status.WAITING_FOR_GRAMMAR, Status.WAITING_FOR_REMOTE_KV})
FINISHED = frozenset({Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.REJECTED, Status.ERROR})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: SET_ASIDE | FINISHED | {Status.RUNNING},
    Status.WAITING_FOR_GRAMMAR: frozenset({Status.WAITING, Status.ABORTED, Status.ERROR}),
    Status.WAITING_FOR_REMOTE_KV: frozenset({Status.WAITING, Status.ABORTED, Status.ERROR}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.ERROR}),
    Status.PREEMPTED: FINISHED | {Status.RUNNING},  # the next worker may have no room for it
    **{status: frozenset() for status in FINISHED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """When a request ends, as far as token ids can tell."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request and how far it has come.

        0 ........ num_computed_tokens ........ target = known + hold + drafts
        |-- K/V present or in a sent step --|-- still to be planned --|

    `hold` counts placeholders: tokens that sent steps will sample and whose ids have not come back.
    """

    identity: Identity
    token_ids: list[int]  # prompt and outputs
    num_prompt_tokens: int
    rules: StopRules
    priority: int = 0
    arrival: float = 0.0
    deadline_s: float | None = None  # of the clock that its scheduler is told
    num_matched_tokens: int = 0  # of its prompt, that its worker held when it was placed there
    wants_logprobs: bool = False

    status: Status = Status.WAITING
    is_finished: bool = False
    finish_detail: str = ""  # "kv_capacity", "POISONED", or why it was aborted
    stop_token_id: int | None = None
    max_tokens: int = 0  # the rules' max_tokens, clamped to the worker it was placed on
    last_position: int = 0  # one past the last that may be planned: the last token of all is never fed back
    ending_token_ids: frozenset[int] = frozenset()  # those that end it once min_tokens are there

    handle: int = 0  # its number on that worker
    epoch: int = 0
    block_ids: list[int] = field(default_factory=list)
    table_digest: int = 0  # of block_ids; with slot_weight, what of it enters a step's slots_digest
    slot_weight: int = 0
    is_declared: bool = False  # the KV cache service has its record
    num_computed_tokens: int = 0
    num_told_tokens: int = 0  # how far the KV cache service knows it has come
    num_acked_tokens: int = 0
    num_unacked_hits: int = 0  # tokens it found cached when it was let in: written at the latest by its first step
    num_committed_tokens: int = 0  # acknowledged positions that were committed
    num_committed_ids: int = 0  # token ids that the KV cache service knows
    hold: int = 0
    drafts: tuple[int, ...] = ()
    num_in_flight: int = 0  # sent steps that contain it and are not answered

    num_cached_tokens: int = 0  # fixed at its first admission
    admitted_s: float | None = None  # when it was let in for the first time
    num_charged_tokens: int = 0  # positions that its tenant has paid for, or that cost nothing
    was_admitted: bool = False
    num_preemptions: int = 0
    num_faults: int = 0  # faulted steps and dead workers since it last brought `NUM_CLEARING_TOKENS` in a row
    num_tokens_in_a_row: int = 0  # new ones since it was last computed again; only counted after a fault
    waited_for: str = ""  # what its last refused plan lacked

    @property
    def request_id(self) -> str:
        return self.identity.request_id

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_expected_tokens(self) -> int:
        """Tokens to be computed before its next output, as far as the cache is known."""
        return max(1, len(self.token_ids) - self.num_matched_tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_suspect(self) -> bool:
        """Whether its next fault would be its last: it is tried alone, so that nobody else is blamed for it."""
        return self.num_faults >= NUM_SHARED_FAULTS

    @property
    def is_fully_planned(self) -> bool:
        return self.num_computed_tokens >= self.last_position

    def enter(self, status: Status) -> None:
        """Change the status, along the table only."""
        assert status in TRANSITIONS[self.status], f"{self.request_id}: {self.status} may not become {status}"
        self.status = status
        self.is_finished = status in FINISHED

    def num_wanted_tokens(self, long_prefill_token_threshold: int) -> int:
        """How far it may move in one step, before budget and blocks."""
        done = self.num_computed_tokens
        wanted = len(self.token_ids) + len(self.drafts) + self.hold - done
        if 0 < long_prefill_token_threshold < wanted:
            wanted = long_prefill_token_threshold
        left = self.last_position - done
        wanted = min(wanted, left)
        return wanted if wanted > 0 else 0

    def place(self, handle: int, max_model_len: int) -> None:
        """Take a number on a worker, whose longest sequence clamps max_tokens."""
        rules = self.rules
        self.handle = handle
        self.max_tokens = min(rules.max_tokens, max_model_len - self.num_prompt_tokens)
        self.last_position = self.num_prompt_tokens + self.max_tokens - 1
        self.ending_token_ids = rules.stop_token_ids if rules.ignore_eos else rules.stop_token_ids | rules.eos_token_ids

    def take_table(self, block_ids: Sequence[int]) -> None:
        """A block table for its current epoch on its worker."""
        self.block_ids = list(block_ids)
        self.table_digest = slot_digest.of_table(block_ids)
        self.slot_weight = slot_digest.weight(self.handle, self.epoch)

    def extend_table(self, block_ids: Sequence[int]) -> None:
        self.block_ids += block_ids
        self.table_digest = slot_digest.of_table(block_ids, self.table_digest)

    def offer_drafts(self, token_ids: Sequence[int]) -> None:
        """Speculative tokens for the next step; dropped while a prefill is unfinished."""
        is_caught_up = self.num_computed_tokens >= self.num_known_tokens + self.hold - 1
        self.drafts = tuple(token_ids) if is_caught_up and self.num_output_tokens > 0 else ()

    def forget_progress(self) -> None:
        """Recompute from the first token: what a preemption, a fault or a lost worker leaves is known ids only."""
        self.epoch += 1
        self.block_ids = []
        self.drafts = ()
        self.num_computed_tokens = self.num_told_tokens = self.num_acked_tokens = 0
        self.num_committed_tokens = self.num_unacked_hits = self.hold = self.num_tokens_in_a_row = 0
        self.waited_for = ""

    def append(self, token_ids: Sequence[int]) -> list[int]:
        """Take sampled tokens one by one until one of them ends the request; the kept ones are returned.

        On the stopping token the status becomes STOPPED or LENGTH; what follows it is discarded.
        """
        kept: list[int] = []
        for token_id in token_ids:
            self.token_ids.append(token_id)
            kept.append(token_id)
            if self.stops_here():
                break
        if self.num_faults:
            self.num_tokens_in_a_row += len(kept)
            if self.num_tokens_in_a_row >= NUM_CLEARING_TOKENS:
                self.num_faults = 0
        return kept

    def blame(self) -> bool:
        """It was in a fault, once more; returns whether that was once too often."""
        self.num_faults += 1
        self.num_tokens_in_a_row = 0
        return self.num_faults >= MAX_FAULTS

    def stops_here(self) -> bool:
        """Apply the stop rules to the last known token."""
        num_known, last = len(self.token_ids), self.token_ids[-1]
        num_outputs = num_known - self.num_prompt_tokens
        if num_outputs == 0:
            return False
        if last in self.ending_token_ids and num_outputs >= self.rules.min_tokens:
            self.stop_token_id = last
            self.enter(Status.STOPPED)
        elif num_known > self.last_position:
            self.enter(Status.LENGTH)
        return self.is_finished
