"""What is known of one generate call, while it runs and at its end: the source of its log line, metrics and spans."""

import time
from dataclasses import dataclass, field

from gateway.core.generation import FinishReason, Timing, Usage
from gateway.core.submission import Ended, Figures


@dataclass(slots=True, kw_only=True)
class AnswerRecord:
    """One answer of the call."""

    num_tokens: int = 0
    num_chunks: int = 0
    last_token_at_s: float | None = None  # monotonic
    finish_reason: FinishReason | None = None
    ended: Ended | None = None


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """Times are monotonic where they end in `_at_s`, wall clock where they end in `_ns`."""

    request_id: str
    tenant: str
    model: str
    num_answers: int
    arrived_at_s: float = field(default_factory=time.monotonic)
    arrived_ns: int = field(default_factory=time.time_ns)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    first_token_at_s: float | None = None
    first_byte_ns: int | None = None
    blocked_s: float = 0.0  # spent waiting for the client to take a chunk
    ended_at_s: float | None = None
    error: str = ""  # reason of the failure, "CANCELLED" if the client left, empty if it finished
    answers: list[AnswerRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [AnswerRecord() for _ in range(self.num_answers)]

    @property
    def created_s(self) -> float:
        return self.arrived_ns / 1e9

    @property
    def usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=sum(answer.num_tokens for answer in self.answers),
            num_cached_tokens=self.num_cached_tokens,
        )

    @property
    def timing(self) -> Timing:
        """The scheduler's figures of the slowest answer; the gateway's own clock where it sent none."""
        end_s = self.ended_at_s or time.monotonic()
        first_s = self.first_token_at_s or end_s
        own = Figures(
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=0,
            queue_s=self.queue_s,
            prefill_s=max(0.0, first_s - self.arrived_at_s - self.queue_s),
            decode_s=end_s - first_s,
        )
        told = [answer.ended.figures for answer in self.answers if answer.ended and answer.ended.figures]
        slowest = max(told, default=own, key=lambda figures: figures.queue_s + figures.prefill_s + figures.decode_s)
        return Timing(
            queue_s=slowest.queue_s,
            prefill_s=slowest.prefill_s,
            decode_s=slowest.decode_s,
            ttft_s=first_s - self.arrived_at_s,
            e2e_s=end_s - self.arrived_at_s,
            num_preemptions=sum(figures.num_preemptions for figures in told),
        )
