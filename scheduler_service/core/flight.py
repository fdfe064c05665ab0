"""Steps that were sent to the worker and are not answered: at most two, answered in order."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.request import Request

WINDOW: Final = 2  # one step runs, one waits behind it


@dataclass(frozen=True, slots=True)
class SentRow:
    """One request's part of a sent step."""

    request: Request
    num_tokens: int
    is_sampling: bool
    num_drafts: int


@dataclass(slots=True, kw_only=True)
class SentStep:
    """A step the worker has, or will have, run: columns, one row per request."""

    seq: int
    step: int | None  # the plan behind it; None = the KV cache service was not asked
    requests: list[Request]
    epochs: list[int]  # when it was sent: a request with a later one has lost its blocks meanwhile
    num_tokens: list[int]
    is_sampling: list[bool]
    num_drafts: dict[int, int]  # by row, where there are any
    is_failed: bool = False  # an earlier step faulted: the worker answers it void

    @property
    def rows(self) -> list[SentRow]:
        """Row by row, for whoever is not in a hurry."""
        columns = zip(self.requests, self.num_tokens, self.is_sampling, strict=True)
        return [SentRow(*columns_, self.num_drafts.get(row, 0)) for row, columns_ in enumerate(columns)]


class Flight:
    """The window. `acked_seq` is the last answered step; `acked_step` the last plan whose steps are all answered."""

    def __init__(self, first_seq: int, window: int) -> None:
        self.steps: deque[SentStep] = deque()
        self.next_seq = first_seq
        self.last_step = 0  # last settled plan
        self.told_step = 0  # last plan whose acknowledgement the KV cache service has heard
        self._last_filling_step = 0  # last settled plan whose step fills a block
        self._window = window

    @property
    def is_full(self) -> bool:
        return len(self.steps) >= self._window

    @property
    def acked_seq(self) -> int:
        return self.steps[0].seq - 1 if self.steps else self.next_seq - 1

    @property
    def acked_step(self) -> int:
        """Plans up to this one have no step left to be answered; one without a step needs none."""
        return next((sent.step - 1 for sent in self.steps if sent.step is not None), self.last_step)

    @property
    def has_untold_acks(self) -> bool:
        """Whether an acknowledged step filled a block that the KV cache service still holds for unwritten."""
        return min(self.acked_step, self._last_filling_step) > self.told_step

    def renumber(self) -> None:
        """Plans count from 1 again; those behind the steps still in flight are of no meaning any more."""
        self.last_step = self.told_step = self._last_filling_step = 0
        for sent in self.steps:
            sent.step = None

    def send(self, sent: SentStep, *, is_filling: bool) -> None:
        """A step is on its way; `is_filling` if it ends a block of any of its requests."""
        assert sent.seq == self.next_seq, f"step {sent.seq} is sent, {self.next_seq} is next"
        self.steps.append(sent)
        self.next_seq += 1
        if sent.step is not None and is_filling:
            self._last_filling_step = sent.step
        for request in sent.requests:
            request.num_in_flight += 1

    def answered(self, seq: int) -> SentStep:
        """Take the oldest step out; answers come in order."""
        sent = self.steps.popleft()
        assert sent.seq == seq, f"result of step {seq} came, {sent.seq} was due"
        for request in sent.requests:
            request.num_in_flight -= 1
        return sent
