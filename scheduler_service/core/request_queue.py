"""The waiting queue of one worker: requests without blocks, in the order in which they will be served."""

import itertools
from collections.abc import Iterator, Sequence

from scheduler_service.core.backlog import Backlog, Queued
from scheduler_service.core.ordered_heap import OrderedHeap
from scheduler_service.core.policy import Order
from scheduler_service.core.request import SET_ASIDE, Request


class RequestQueue:
    """Ordered by the policy. Requests that are set aside keep their place but are not offered."""

    def __init__(self, order: Order) -> None:
        self.backlog = Backlog()
        self._order = order
        self._requests: set[Request] = set()
        self._deadlines: OrderedHeap[Request] = OrderedHeap()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[Request]:
        """All of them, set aside or not."""
        return iter(self._order)

    def ready(self) -> Iterator[Request]:
        """Those that may be served, in order."""
        return (request for request in self if request.status not in SET_ASIDE)

    def head(self) -> Request | None:
        return next(self.ready(), None) if self._requests else None

    @property
    def num_set_aside(self) -> int:
        return sum(request.status in SET_ASIDE for request in self._requests)

    def ahead_of(self, request: Request) -> Queued:
        """The least that will be served before a newcomer."""
        return self._order.ahead_of(request, self.backlog)

    def add(self, request: Request) -> None:
        """A newcomer, to the place that the policy gives it."""
        self._enter(request)
        self._order.add(request)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Requests that lost their blocks: to the front, in the order given."""
        for request in requests:
            self._enter(request)
        self._order.put_back(requests)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)
        self.backlog.remove(request)
        self._order.remove(request)
        if request in self._deadlines:
            self._deadlines.remove(request)

    def clear(self) -> None:
        for request in list(self._requests):
            self.remove(request)

    def expired(self, now_s: float) -> list[Request]:
        """Those whose deadline has passed; they stay until they are removed."""
        if not self._deadlines:
            return []
        return list(itertools.takewhile(lambda request: _deadline_s(request) <= now_s, self._deadlines))

    def _enter(self, request: Request) -> None:
        assert request not in self, f"{request.request_id} is already waiting"
        self._requests.add(request)
        self.backlog.add(request)
        if request.deadline_s is not None:
            self._deadlines.push(request, (request.deadline_s,))


def _deadline_s(request: Request) -> float:
    assert request.deadline_s is not None, f"{request.request_id} has no deadline"
    return request.deadline_s
