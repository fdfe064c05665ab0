"""Decides which steps are taken from the wire and which of them may run. Knows numbers only, not what is in a step.

Steps are numbered without gaps. They are taken once each and in order; none runs that was planned before a failure was
known.
"""

from enum import Enum, auto


class Turn(Enum):
    """Where a step that comes stands among the others."""

    NEXT = auto()
    REPEATED = auto()  # it was taken before: say nothing
    EARLY = auto()  # one before it never came: the stream is not to be trusted


class Received:
    """The last step taken from the wire."""

    __slots__ = ("last_seq",)

    def __init__(self) -> None:
        self.last_seq = 0

    def turn(self, seq: int) -> Turn:
        """What step `seq` is; if it is the next one, it is taken."""
        if seq <= self.last_seq:
            return Turn.REPEATED
        if seq > self.last_seq + 1:
            return Turn.EARLY
        self.last_seq = seq
        return Turn.NEXT


class StepSequence:
    """The last step answered and the last that voids others, of one incarnation.

    A step that did not run voids every step planned before the scheduler knew of it. `acked_seq` of a step tells what
    the scheduler knew when it planned: it is void until `acked_seq` has reached the failure.
    """

    __slots__ = ("_voiding_seq", "last_seq")

    def __init__(self) -> None:
        self.last_seq = 0
        self._voiding_seq = 0

    def may_run(self, seq: int, acked_seq: int) -> bool:
        """Whether the next step, `seq`, was planned in knowledge of every failure. Changes nothing."""
        assert seq == self.last_seq + 1, f"step {seq} was taken after {self.last_seq}"
        return acked_seq >= self._voiding_seq

    def answered(self, seq: int, *, voids_later: bool) -> None:
        """Step `seq` has its answer, which may void what was planned in ignorance of it."""
        assert seq == self.last_seq + 1, f"step {seq} answered after {self.last_seq}"
        self.last_seq = seq
        if voids_later:
            self._voiding_seq = seq
