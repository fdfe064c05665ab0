"""First come, first served; and the line of those who lost their blocks, which other policies have too."""

import itertools
from collections.abc import Iterator, Sequence

from scheduler_service.core.backlog import Backlog, Queued
from scheduler_service.core.ordered_heap import OrderedHeap
from scheduler_service.core.request import Request


class FrontLine:
    """Requests that ran before: the latest to lose their blocks first, those of one time in the order they ran in."""

    def __init__(self) -> None:
        self._heap: OrderedHeap[Request] = OrderedHeap()
        self._batch = 0

    def __contains__(self, request: Request) -> bool:
        return request in self._heap

    def __iter__(self) -> Iterator[Request]:
        return iter(self._heap)

    def put_back(self, requests: Sequence[Request]) -> None:
        self._batch -= 1
        for place, request in enumerate(requests):
            self._heap.push(request, (self._batch, place))

    def remove(self, request: Request) -> None:
        self._heap.remove(request)


class Fcfs:
    """By arrival. Those who lost their blocks go before everybody.

    Nobody starves: who waits and who runs stand in one line, whose order never changes. Blocks are taken from its end.
    """

    def __init__(self) -> None:
        self._front = FrontLine()
        self._newcomers: OrderedHeap[Request] = OrderedHeap()

    def __iter__(self) -> Iterator[Request]:
        return itertools.chain(self._front, self._newcomers)

    def add(self, request: Request) -> None:
        self._newcomers.push(request, (request.arrival,))

    def put_back(self, requests: Sequence[Request]) -> None:
        self._front.put_back(requests)

    def remove(self, request: Request) -> None:
        (self._front if request in self._front else self._newcomers).remove(request)

    def victims(self, running: Sequence[Request]) -> list[Request]:
        return list(reversed(running))

    def displaced(self, running: Sequence[Request], head: Request) -> Request | None:
        return None

    def ahead_of(self, request: Request, backlog: Backlog) -> Queued:
        return backlog.total

    def expected_ahead(self, request: Request, backlog: Backlog) -> Queued:
        return self.ahead_of(request, backlog)

    def charge(self, running: Sequence[Request]) -> None:
        """Who got how much does not matter here."""

    def ended(self, request: Request) -> None:
        """Nor does this."""
