"""The waiting queue of one worker: requests without blocks, in the order in which they will be served."""

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from scheduler_service.core.policy import Policy, QueueKey, queue_key
from scheduler_service.core.request import SET_ASIDE, Request

_Entry = tuple[QueueKey, int, Request]  # the counter keeps entries with equal keys in order of entry


class RequestQueue:
    """Sorted by the policy's key. Requests that are set aside keep their place but are not offered."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[_Entry] = []
        self._position: dict[str, tuple[QueueKey, int]] = {}
        self._counter = itertools.count()
        self._front_rank = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._position

    def __iter__(self) -> Iterator[Request]:
        """All of them, set aside or not."""
        return (request for _, _, request in self._entries)

    def ready(self) -> Iterator[Request]:
        """Those that may be served, in order."""
        return (request for request in self if request.status not in SET_ASIDE)

    def head(self) -> Request | None:
        return next(self.ready(), None)

    @property
    def num_set_aside(self) -> int:
        return sum(request.status in SET_ASIDE for request in self)

    def add(self, request: Request) -> None:
        """A newcomer: behind everybody of its class who arrived before."""
        self._insert(request, rank=0, place=request.arrival)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Requests that lost their blocks: to the front, in the order given."""
        self._front_rank -= 1
        for place, request in enumerate(requests):
            self._insert(request, rank=self._front_rank, place=place)

    def remove(self, request: Request) -> None:
        key, count = self._position.pop(request.request_id)
        index = bisect_left(self._entries, (key, count), key=lambda entry: entry[:2])
        assert self._entries[index][2] is request, f"{request.request_id} is not at its place in the queue"
        del self._entries[index]

    def clear(self) -> None:
        self._entries.clear()
        self._position.clear()

    def _insert(self, request: Request, *, rank: int, place: float) -> None:
        assert request not in self, f"{request.request_id} is already waiting"
        key = queue_key(self._policy, request, rank=rank, place=place)
        count = next(self._counter)
        self._position[request.request_id] = (key, count)
        insort(self._entries, (key, count, request), key=lambda entry: entry[:2])
