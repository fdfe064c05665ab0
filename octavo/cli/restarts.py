"""When a service that ended is started again: how long after, and when to give up. Time is an argument."""

from collections import deque
from dataclasses import dataclass

PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)  # after the first end, the second in a row and so on; the last repeats
SETTLED_S = 60.0  # one that ran this long starts afresh: its end is the first of its row
WINDOW_S = 300.0
MAX_ENDS = 10  # within the window; one more and it is not started again


@dataclass(frozen=True, slots=True)
class Restart:
    """What to do about an end."""

    pause_s: float
    num_ends: int  # within the window, this one included


class Restarts:
    """The ends of one service so far."""

    def __init__(self) -> None:
        self.num_ends = 0  # in all
        self._ended_at_s: deque[float] = deque()
        self._num_in_a_row = 0

    def ended(self, now_s: float, *, ran_s: float) -> Restart | None:
        """Note an end; None if there were too many."""
        self.num_ends += 1
        self._ended_at_s.append(now_s)
        while self._ended_at_s[0] <= now_s - WINDOW_S:
            self._ended_at_s.popleft()
        self._num_in_a_row = 1 if ran_s >= SETTLED_S else self._num_in_a_row + 1
        if len(self._ended_at_s) > MAX_ENDS:
            return None
        pause_s = PAUSES_S[min(self._num_in_a_row, len(PAUSES_S)) - 1]
        return Restart(pause_s, len(self._ended_at_s))
