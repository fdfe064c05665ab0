"""What the shell keeps of a request beside the core's state: who asked, how it samples, and what happened when."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.errors import Failure
from octavo.loop_clock import Timer
from octavo.telemetry import Event, SpanContext
from scheduler_service.core.plan import Identity
from scheduler_service.core.request import Request, StopRules

if TYPE_CHECKING:
    from scheduler_service.gateway_session import GatewaySession


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a request ended."""

    reason: str  # "stop", "length", "cancelled" or "error": vLLM's finished_reason where it has one
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as a gateway hands it in."""

    request_num: int
    client_request_id: str
    tenant: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    sampling: bytes  # serialized SamplingParams, handed on unread
    stopping: bytes  # serialized StoppingParams; what the core needs of it is in the fields below
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    wants_logprobs: bool
    priority: int
    remaining_s: float | None
    cache_salt: str
    cache_bypass: bool
    trace_context: bytes
    was_submitted: bool  # on an earlier stream, where it was not rejected

    def request(self, request_id: str, now_s: float) -> Request:
        """What the core needs of it; the time that remains counts from now."""
        return Request(
            identity=Identity(
                request_id=request_id,
                tenant=self.tenant,
                cache_salt=self.cache_salt,
                cache_bypass=self.cache_bypass,
                trace_context=self.trace_context,
            ),
            token_ids=[*self.prompt_token_ids, *self.output_token_ids],
            num_prompt_tokens=len(self.prompt_token_ids),
            rules=StopRules(
                max_tokens=self.max_tokens,
                min_tokens=self.min_tokens,
                ignore_eos=self.ignore_eos,
                eos_token_ids=self.eos_token_ids,
                stop_token_ids=self.stop_token_ids,
            ),
            priority=self.priority,
            arrival=now_s,
            deadline_s=None if self.remaining_s is None else now_s + self.remaining_s,
            wants_logprobs=self.wants_logprobs,
        )


@dataclass(slots=True)
class Wait:
    """A time in the queue."""

    start_ns: int
    reason: str = ""  # "preempted", or empty for the first
    depth: int = 0
    tokens_ahead: int = 0
    end_ns: int | None = None
    waited_for: str = ""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step was made of, so that a request's own trace can tell why it was slow."""

    seq: int
    sent_ns: int
    done_ns: int
    num_prefill_tokens: int
    num_decode_seqs: int
    num_batch_tokens: int
    budget: int
    context: SpanContext | None


@dataclass(slots=True)
class Trace:
    """What a sampled request's spans are made from when it ends."""

    parent: SpanContext
    waits: list[Wait] = field(default_factory=list)
    chunks: list[tuple[StepFacts, int]] = field(default_factory=list)  # step, tokens
    decodes: list[StepFacts] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # of the monotonic clock


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One open request."""

    request: Request
    submission: Submission
    gateway: "GatewaySession"  # hears what becomes of it
    trace: Trace | None  # None: not sampled
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    worker_id: str | None = None  # where it is placed
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    token_gaps_ns: list[int] = field(default_factory=list)  # of sampled requests
    deadline: asyncio.TimerHandle | None = None
    no_worker: Timer | None = None  # runs while no worker is attached
    logprobs: list[bytes] = field(default_factory=list)  # of its tokens since the submit, for a gateway that comes back

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def request_num(self) -> int:
        return self.submission.request_num

    def begin_wait(self, reason: str = "") -> None:
        """It begins to wait for a place in a step."""
        if self.trace is not None:
            self.trace.waits.append(Wait(time.monotonic_ns(), reason))

    def queued(self, *, depth: int, tokens_ahead: int) -> None:
        """It waits on a worker, behind so many."""
        if self.trace is not None:
            self.trace.waits[-1].depth = depth
            self.trace.waits[-1].tokens_ahead = tokens_ahead

    def scheduled(self) -> bool:
        """It is let in; returns whether for the first time."""
        now_ns = time.monotonic_ns()
        is_first = self.admitted_ns is None
        if is_first:
            self.admitted_ns = now_ns
        if self.trace is not None:
            wait = self.trace.waits[-1]
            wait.end_ns, wait.waited_for = now_ns, self.request.waited_for
            if not is_first:
                self.trace.events.append(Event("resumed", now_ns))
        return is_first

    def preempted(self, reason: str, num_tokens: int) -> None:
        """It lost its blocks and waits again."""
        if self.trace is not None:
            attributes: dict[str, int | str] = {"octavo.reason": reason, "octavo.tokens_to_recompute": num_tokens}
            self.trace.events.append(Event("preempted", time.monotonic_ns(), attributes))
            self.begin_wait("preempted")

    def got_tokens(self, now_ns: int) -> bool:
        """New tokens came; returns whether they are the first."""
        is_first = self.first_token_ns is None
        if is_first:
            self.first_token_ns = now_ns
        elif self.trace is not None and self.last_token_ns is not None:
            self.token_gaps_ns.append(now_ns - self.last_token_ns)
        self.last_token_ns = now_ns
        return is_first

    def stop_timers(self) -> None:
        for timer in (self.deadline, self.no_worker):
            if timer is not None:
                timer.cancel()
        self.deadline = self.no_worker = None
