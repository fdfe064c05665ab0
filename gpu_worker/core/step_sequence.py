"""Decides whether a step may run: steps run once each, in the order of seq, and none that was planned before a fault
was known. Knows numbers only, nothing of what is in a step.
"""

from enum import Enum, auto


class Verdict(Enum):
    """What to do with a step."""

    RUN = auto()
    VOID = auto()  # answer that it was not run
    FAULT = auto()  # answer that it cannot run: its predecessor never came
    REPEATED = auto()  # it was answered before: say nothing


class StepSequence:
    """The last step answered and the last that failed, of one incarnation.

    A step that failed voids every step planned before the scheduler knew of it. `acked_seq` of a step tells what the
    scheduler knew when it planned: it is void until `acked_seq` has reached the fault.
    """

    __slots__ = ("_fault_seq", "last_seq")

    def __init__(self) -> None:
        self.last_seq = 0  # of the last step answered
        self._fault_seq = 0

    def judge(self, seq: int, acked_seq: int) -> Verdict:
        """What becomes of step `seq`. Changes nothing."""
        if seq <= self.last_seq:
            return Verdict.REPEATED
        if seq > self.last_seq + 1:
            return Verdict.FAULT
        return Verdict.VOID if acked_seq < self._fault_seq else Verdict.RUN

    def missing(self, seq: int) -> range:
        """The seqs between the last step and `seq` that never came."""
        return range(self.last_seq + 1, seq)

    def answered(self, seq: int, *, is_fault: bool) -> None:
        """Step `seq` has its answer; a fault voids what was planned in ignorance of it."""
        assert seq > self.last_seq, f"step {seq} answered after {self.last_seq}"
        self.last_seq = seq
        if is_fault:
            self._fault_seq = seq
