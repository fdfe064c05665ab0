"""Owns one request: its token ids, how far it has come, its status, and the rules by which it ends.

Knows neither other requests nor blocks beyond the table it was given.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    wants_logprobs: bool = False

    status: Status = Status.WAITING
    finish_detail: str = ""  # "kv_capacity", "POISONED", or why it was aborted
    stop_token_id: int | None = None
    max_model_len: int = 0  # of the worker it was placed on
    max_tokens: int = 0  # the rules' max_tokens, clamped to that worker

    handle: int = 0  # its number on that worker
    epoch: int = 0
    block_ids: list[int] = field(default_factory=list)
    is_declared: bool = False  # the KV cache service has its record
    num_computed_tokens: int = 0
    num_told_tokens: int = 0  # how far the KV cache service knows it has come
    num_acked_tokens: int = 0
    num_committed_tokens: int = 0  # acknowledged positions that were committed
    num_committed_ids: int = 0  # token ids that the KV cache service knows
    hold: int = 0
    drafts: tuple[int, ...] = ()
    num_in_flight: int = 0  # sent steps that contain it and are not answered

    num_cached_tokens: int = 0  # fixed at its first admission
    was_admitted: bool = False
    num_preemptions: int = 0
    num_faults: int = 0  # faulted steps and dead workers since its last new token
    waited_for: str = ""  # what its last refused plan lacked

    @property
    def request_id(self) -> str:
        return self.identity.request_id

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_suspect(self) -> bool:
        """Whether it was in a fault since its last new token; it is retried alone."""
        return self.num_faults > 0

    @property
    def last_position(self) -> int:
        """One past the last position that may ever be planned: the last token of all is never fed back."""
        return min(self.num_prompt_tokens + self.max_tokens, self.max_model_len) - 1

    @property
    def is_fully_planned(self) -> bool:
        return self.num_computed_tokens >= self.last_position

    def enter(self, status: Status) -> None:
        """Change the status, along the table only."""
        assert status in TRANSITIONS[self.status], f"{self.request_id}: {self.status} may not become {status}"
        self.status = status

    def num_wanted_tokens(self, long_prefill_token_threshold: int) -> int:
        """How far it may move in one step, before budget and blocks."""
        done = self.num_computed_tokens
        wanted = len(self.token_ids) + len(self.drafts) + self.hold - done
        if 0 < long_prefill_token_threshold < wanted:
            wanted = long_prefill_token_threshold
        return max(0, min(wanted, self.last_position - done))

    def place(self, handle: int, max_model_len: int) -> None:
        """Take a number on a worker, whose longest sequence clamps max_tokens."""
        self.handle = handle
        self.max_model_len = max_model_len
        self.max_tokens = min(self.rules.max_tokens, max_model_len - self.num_prompt_tokens)

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
        self.num_committed_tokens = self.hold = 0
        self.waited_for = ""

    def append(self, token_ids: Sequence[int]) -> list[int]:
        """Take sampled tokens one by one until one of them ends the request; the kept ones are returned.

        On the stopping token the status becomes STOPPED or LENGTH; what follows it is discarded.
        """
        kept: list[int] = []
        for token_id in token_ids:
            self.token_ids.append(token_id)
            kept.append(token_id)
            self.num_faults = 0
            if self.stops_here():
                break
        return kept

    def stops_here(self) -> bool:
        """Apply the stop rules to the last known token."""
        if self.num_output_tokens == 0:
            return False
        last = self.token_ids[-1]
        is_eos = last in self.rules.eos_token_ids and not self.rules.ignore_eos
        if (is_eos or last in self.rules.stop_token_ids) and self.num_output_tokens >= self.rules.min_tokens:
            self.stop_token_id = last
            self.enter(Status.STOPPED)
        elif self.num_known_tokens >= self.max_model_len or self.num_output_tokens >= self.max_tokens:
            self.enter(Status.LENGTH)
        return self.is_finished
