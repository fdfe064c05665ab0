"""Lower numbers first, with aging: a class is worth so many seconds of waiting, so that nobody starves.

A request counts as if it had come `priority * aging_s` seconds later than it did. That is an effective class which
falls by one every `aging_s` seconds, and since it falls for all alike, the order never changes while they wait.
"""

from collections.abc import Iterator, Sequence

from scheduler_service.core.backlog import Backlog, Queued
from scheduler_service.core.ordered_heap import OrderedHeap
from scheduler_service.core.request import Request


class Priority:
    """By aged class, then arrival, then id.

    Those who lost their blocks go before all of their own and of lower classes that never ran.
    """

    def __init__(self, *, aging_s: float) -> None:
        self._aging_s = aging_s
        self._returned: OrderedHeap[Request] = OrderedHeap()
        self._newcomers: OrderedHeap[Request] = OrderedHeap()

    def __iter__(self) -> Iterator[Request]:
        returned, newcomers = iter(self._returned), iter(self._newcomers)
        back, new = next(returned, None), next(newcomers, None)
        while back is not None or new is not None:
            if back is None or (new is not None and self._is_above(new, back)):
                assert new is not None, "one of the two is left"
                yield new
                new = next(newcomers, None)
            else:
                yield back
                back = next(returned, None)

    def add(self, request: Request) -> None:
        self._newcomers.push(request, self._key(request))

    def put_back(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._returned.push(request, self._key(request))

    def remove(self, request: Request) -> None:
        (self._returned if request in self._returned else self._newcomers).remove(request)

    def victims(self, running: Sequence[Request]) -> list[Request]:
        return sorted(running, key=self._key, reverse=True)

    def displaced(self, running: Sequence[Request], head: Request) -> Request | None:
        """The last in order, if `head` is of a strictly higher class and stands before it after aging, too."""
        last = max(running, key=self._key)
        return last if self._is_above(head, last) else None

    def ahead_of(self, request: Request, backlog: Backlog) -> Queued:
        """Its own class and those above; lower ones that have waited long are not counted."""
        return backlog.up_to_class(request.priority)

    def expected_ahead(self, request: Request, backlog: Backlog) -> Queued:
        return self.ahead_of(request, backlog)

    def charge(self, running: Sequence[Request]) -> None:
        """Who got how much does not matter here."""

    def ended(self, request: Request) -> None:
        """Nor does this."""

    def _is_above(self, request: Request, other: Request) -> bool:
        return request.priority < other.priority and self._key(request) < self._key(other)

    def _key(self, request: Request) -> tuple[float, float, str]:
        return (request.arrival + request.priority * self._aging_s, request.arrival, request.request_id)
