"""How fast the queue drains and how fast prompts are computed, as measured; what is predicted from it.

Every prediction is on the early side: what cannot be known is taken for no work. Time is told, never read.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.backlog import Queued
from scheduler_service.core.request import Request

NUM_DEPARTURES: Final = 64  # that rates are taken over
NUM_STEPS: Final = 32
MIN_SAMPLES: Final = 4  # before that nothing counts as measured
RETRY_AFTER_S: Final = 1.0  # when nothing is measured yet
MIN_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Departure:
    """Requests that left the queue together, and for how long others had been waiting for it."""

    num_requests: int
    num_tokens: int
    waited_s: float


class DrainRate:
    """The measurements of one worker."""

    def __init__(self) -> None:
        self._departures: deque[Departure] = deque(maxlen=NUM_DEPARTURES)
        self._rates: deque[float] = deque(maxlen=NUM_STEPS)  # tokens per second of large steps
        self._waiting_since_s: float | None = None  # the last departure, or when the queue ceased to be empty
        self._promised_s = 0.0  # when the last of those who were sent away may come back

    def let_in(self, admitted: Sequence[Request], *, num_waiting: int, now_s: float) -> None:
        """A plan was settled. Requests that only came back from a preemption are no progress for the others."""
        new = [request for request in admitted if not request.num_preemptions]
        if new and self._waiting_since_s is not None:
            num_tokens = sum(request.num_expected_tokens for request in new)
            self._departures.append(Departure(len(new), num_tokens, now_s - self._waiting_since_s))
            self._waiting_since_s = now_s
        if num_waiting == 0:
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def step(self, num_tokens: int, *, seconds: float, budget: int) -> None:
        """A step was answered. Only one that filled half the budget says how fast a long prompt would be computed."""
        if 2 * num_tokens >= budget and seconds > 0:
            self._rates.append(num_tokens / seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Of a well-filled step; the median, so that a first slow one does not matter."""
        return statistics.median(self._rates) if len(self._rates) >= MIN_SAMPLES else None

    def requests_per_s(self, now_s: float) -> float | None:
        """Requests that leave the queue while there is one; None until measured."""
        waited_s = self._waited_s(now_s)
        return sum(d.num_requests for d in self._departures) / waited_s if waited_s else None

    def retry_after_s(self, *, num_requests: int, num_tokens: int, now_s: float) -> float:
        """When there will be room for so much more. Those who are sent away one after the other are told later times.

        So they do not all come back at once.
        """
        needed_s = self._drained_in_s(Queued(num_requests, num_tokens), now_s, longest=True)
        if needed_s is None:
            return RETRY_AFTER_S
        self._promised_s = min(max(self._promised_s, now_s) + needed_s, now_s + MAX_RETRY_S)
        return max(MIN_RETRY_S, self._promised_s - now_s)

    def predicted_ttft_s(
        self, *, ahead: Queued, num_running_tokens: int, num_own_tokens: int, now_s: float
    ) -> float | None:
        """Time to the first token of a newcomer behind that load, at the earliest; None while nothing is measured.

        Until its turn: as long as the queue takes to drain, or what runs takes to be computed. Then its own prompt.
        """
        queue_s = self._drained_in_s(ahead, now_s, longest=False)
        rate = self.tokens_per_s
        if rate is None:
            return queue_s
        return max(queue_s or 0.0, num_running_tokens / rate) + num_own_tokens / rate

    def _drained_in_s(self, load: Queued, now_s: float, *, longest: bool) -> float | None:
        """By requests or by tokens: slots or computing may be what it waits for."""
        waited_s = self._waited_s(now_s)
        if not waited_s:
            return None
        by_requests = load.num_requests * waited_s / sum(d.num_requests for d in self._departures)
        by_tokens = load.num_tokens * waited_s / sum(d.num_tokens for d in self._departures)
        return (max if longest else min)(by_requests, by_tokens)

    def _waited_s(self, now_s: float) -> float:
        """The time behind all measured departures and since; 0 until measured."""
        if len(self._departures) < MIN_SAMPLES:
            return 0.0
        since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        return sum(d.waited_s for d in self._departures) + max(0.0, now_s - since_s)
