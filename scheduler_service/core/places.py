"""The places of those who were sent away and told when to come back: kept for whoever asks the same again, for a while.

One `Places` serves all workers of a scheduler, because a request that comes back may be placed with another one; each
worker has a `Line` of those that it sent away. Time is told, never read.
"""

import heapq
import itertools
import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.request import Request

EARLY_S: Final = 0.05  # before its time at which it counts as come: clients round
KEPT_S: Final = 5.0  # after its time during which it does: HTTP clients wait for whole seconds
SAME_CALL_S: Final = 0.1  # between two equal requests that are two answers to one call, and not a client in a hurry
LONGEST_S: Final = 600.0  # that anybody is sent away for
SPACING: Final = 1.25  # between two who may come, in times that one takes: the rest is for newcomers, and for bad luck


@dataclass(slots=True, eq=False, kw_only=True)
class Place:
    """Of one who was sent away."""

    key: int
    made_s: float
    due_s: float
    is_over: bool = False  # taken, or given up

    def is_due(self, now_s: float) -> bool:
        return self.due_s - EARLY_S <= now_s


class Places:
    """By what was asked for: a client that comes back says nothing of having been here."""

    def __init__(self) -> None:
        self._by_key: dict[int, deque[Place]] = {}
        self._by_end: list[tuple[float, int, Place]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def find(self, request: Request, now_s: float) -> Place | None:
        """The place that is kept for an equal request, the first if there are several."""
        self._give_up(now_s)
        places = self._by_key.get(_key(request)) if self._by_key else None
        return places[0] if places else None

    def make(self, request: Request, *, due_s: float, now_s: float) -> Place:
        place = Place(key=_key(request), made_s=now_s, due_s=due_s)
        self._by_key.setdefault(place.key, deque()).append(place)
        heapq.heappush(self._by_end, (due_s + KEPT_S, next(self._numbers), place))
        return place

    def end(self, place: Place) -> None:
        """It was taken, or nobody came."""
        place.is_over = True
        places = self._by_key[place.key]
        places.remove(place)
        if not places:
            del self._by_key[place.key]

    def _give_up(self, now_s: float) -> None:
        while self._by_end and self._by_end[0][0] <= now_s:
            _, _, place = heapq.heappop(self._by_end)
            if not place.is_over:
                self.end(place)


class Line:
    """Those whom one worker sent away, in the order in which they may come back."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._dues_s: list[float] = []
        self._last_due_s = self._last_again_s = -math.inf

    def num_due(self, *, now_s: float, until_s: float) -> int:
        """Those who may be expected by then; who should have come already is not waited for."""
        del self._dues_s[: bisect_left(self._dues_s, now_s)]
        return bisect_right(self._dues_s, until_s)

    def send_away(self, request: Request, *, room_in_s: float, gap_s: float, now_s: float) -> float:
        """For how long: until there is room, and behind those who were sent away before, each of whom takes `gap_s`.

        Who comes back too early is told what is left of its time. Who comes in time and finds no room goes before
        all who never came.
        """
        place = self.places.find(request, now_s)
        if place is not None and not place.is_due(now_s) and now_s - place.made_s > SAME_CALL_S:
            return place.due_s - now_s
        if place is not None and place.is_due(now_s):
            self.places.end(place)
            due_s = self._last_again_s = max(now_s + room_in_s, self._last_again_s + gap_s)
        else:
            due_s = max(now_s + room_in_s, self._last_due_s + SPACING * gap_s)
            if due_s > now_s + LONGEST_S:
                return LONGEST_S
            self._last_due_s = due_s
        self.places.make(request, due_s=due_s, now_s=now_s)
        insort(self._dues_s, due_s)
        return due_s - now_s


def _key(request: Request) -> int:
    prompt = request.token_ids[: request.num_prompt_tokens]
    return hash((request.identity.tenant, request.identity.cache_salt, request.rules.max_tokens, tuple(prompt)))
