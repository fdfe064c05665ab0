"""How fast the queue drains and how fast prompts are computed, as measured; what is predicted from it.

There are two predictions. The early one takes what cannot be known for no work: nobody is refused for a deadline that
could be met. The late one leaves room for chance: who is let in for it is served in time. Time is told, never read.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.backlog import Queued
from scheduler_service.core.outcome import Output
from scheduler_service.core.request import Request

NUM_DEPARTURES: Final = 64  # that rates are taken over
NUM_STEPS: Final = 32
MIN_SAMPLES: Final = 4  # before that nothing counts as measured
NUM_DELAYS: Final = 32  # from being let in to the first token
SURE: Final = 2.33  # deviations above the mean: of 100 waits one is longer
LIKELY: Final = 1.65  # of 100 waits five are longer
RETRY_AFTER_S: Final = 1.0  # when nothing is measured yet
MIN_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Departure:
    """Requests that left the queue together, and for how long others had been waiting for it."""

    num_requests: int
    num_tokens: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two requests that leave the queue while there is one."""

    mean_s: float
    deviation_s: float
    num_measured: int

    def wait_s(self, num_requests: int, num_deviations: float) -> float:
        """How long so many take to leave, with room for chance; that the mean may be wrong is in it."""
        variance = num_requests * (1 + num_requests / self.num_measured) * self.deviation_s**2
        return num_requests * self.mean_s + num_deviations * math.sqrt(variance)


class DrainRate:
    """The measurements of one worker."""

    def __init__(self) -> None:
        self._delays_s: deque[float] = deque(maxlen=NUM_DELAYS)
        self._departures: deque[Departure] = deque(maxlen=NUM_DEPARTURES)
        self._rates: deque[float] = deque(maxlen=NUM_STEPS)  # tokens per second of large steps
        self._waiting_since_s: float | None = None  # the last departure, or when the queue ceased to be empty
        self._promised_s = 0.0  # when the last of those who were sent away may come back

    def let_in(self, admitted: Sequence[Request], *, num_waiting: int, now_s: float) -> None:
        """A plan was settled. Requests that only came back from a preemption are no progress for the others."""
        new = [request for request in admitted if not request.num_preemptions]
        for request in new:
            request.admitted_s = now_s
        if new and self._waiting_since_s is not None:
            num_tokens = sum(request.num_expected_tokens for request in new)
            self._departures.append(Departure(len(new), num_tokens, now_s - self._waiting_since_s))
            self._waiting_since_s = now_s
        if num_waiting == 0:
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def interrupted(self) -> None:
        """Nothing could leave the queue for a while, through no fault of its own: that says nothing of its pace."""
        self._waiting_since_s = None

    def step(self, num_tokens: int, *, seconds: float, budget: int) -> None:
        """A step was answered. Only one that filled half the budget says how fast a long prompt would be computed."""
        if 2 * num_tokens >= budget and seconds > 0:
            self._rates.append(num_tokens / seconds)

    def brought(self, outputs: Iterable[Output], *, now_s: float) -> None:
        """A step brought tokens. First ones say how long they take; those of requests that were disturbed do not."""
        for output in outputs:
            request = output.request
            is_first = output.token_ids and request.num_output_tokens == len(output.token_ids)
            if is_first and request.admitted_s is not None and not request.num_preemptions:
                self._delays_s.append(now_s - request.admitted_s)

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

    def gap(self, running: Sequence[Request], now_s: float) -> Gap | None:
        """Until it is measured, from the ages of those that run: they are halfway, on average. None without any.

        Of those that came back from a preemption or another worker it is not known how long they would take.
        """
        waited_s = self._waited_s(now_s)
        if waited_s:
            num_requests = sum(d.num_requests for d in self._departures)
            mean_s = waited_s / num_requests
            squares = sum((d.waited_s - d.num_requests * mean_s) ** 2 for d in self._departures)
            return Gap(mean_s, math.sqrt(squares / num_requests), num_requests)
        new = [request for request in running if not request.num_preemptions]
        ages_s = [now_s - request.admitted_s for request in new if request.admitted_s is not None]
        if not ages_s:
            return None
        mean_s = 2 * statistics.fmean(ages_s) / len(ages_s)
        return Gap(mean_s, mean_s, len(ages_s))

    def own_s(self, num_own_tokens: int) -> float:
        """From being let in to the first token: as most needed lately, and no less than its prompt takes to compute."""
        rate = self.tokens_per_s
        prompt_s = num_own_tokens / rate if rate else 0.0
        lately_s = sorted(self._delays_s)[9 * len(self._delays_s) // 10] if self._delays_s else 0.0
        return max(prompt_s, lately_s)

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
