"""Steps that were sent to the worker and are not answered: at most two, answered in order."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.request import Request

WINDOW: Final = 2  # one step runs, one waits behind it


@dataclass(slots=True, kw_only=True)
class SentRow:
    """One request's part of a sent step."""

    request: Request
    epoch: int  # of the request when it was sent: a later one means that it lost its blocks meanwhile
    num_tokens: int
    is_sampling: bool
    num_drafts: int

    def ends_block(self, block_size: int) -> bool:
        """Asked when it was just sent: whether its last token is, or lies behind, the last of a block."""
        end = self.request.num_computed_tokens
        return end // block_size > (end - self.num_tokens) // block_size


@dataclass(slots=True, kw_only=True)
class SentStep:
    """A step the worker has, or will have, run."""

    seq: int
    step: int | None  # the plan behind it; None = the KV cache service was not asked
    rows: list[SentRow]
    is_failed: bool = False  # an earlier step faulted: the worker answers it void


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

    def send(self, rows: list[SentRow], *, step: int | None, is_filling: bool) -> SentStep:
        sent = SentStep(seq=self.next_seq, step=step, rows=rows)
        self.steps.append(sent)
        self.next_seq += 1
        if step is not None and is_filling:
            self._last_filling_step = step
        for row in rows:
            row.request.num_in_flight += 1
        return sent

    def answered(self, seq: int) -> SentStep:
        """Take the oldest step out; answers come in order."""
        sent = self.steps.popleft()
        assert sent.seq == seq, f"result of step {seq} came, {sent.seq} was due"
        for row in sent.rows:
            row.request.num_in_flight -= 1
        return sent
