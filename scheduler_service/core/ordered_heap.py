"""A heap that can also be read in order, and that gives up any of its items: each in O(log n)."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

Key = tuple[float | str, ...]  # smaller comes first; the keys of one heap are of one length
MIN_DEAD: Final = 64  # entries of removed items that are kept before the heap is made anew


class OrderedHeap(Generic[T]):
    """Items by key, those with equal keys in the order in which they came.

    A removed item's entry stays until it reaches the top, or until most entries are such.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, T]] = []
        self._entries: dict[T, tuple[Key, int, T]] = {}  # of the items that are in
        self._counter = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def push(self, item: T, key: Key) -> None:
        """Put an item in, or to another place."""
        entry = (key, next(self._counter), item)
        self._entries[item] = entry
        heapq.heappush(self._heap, entry)
        self._clear_dead()

    def remove(self, item: T) -> None:
        del self._entries[item]
        self._clear_dead()

    def first(self) -> T | None:
        return next(iter(self), None)

    def __iter__(self) -> Iterator[T]:
        """In order, without changing anything: only the part of the heap that can hold the next item is looked at."""
        heap, frontier = self._heap, list[tuple[tuple[Key, int, T], int]]()
        if heap:
            frontier.append((heap[0], 0))
        while frontier:
            entry, index = heapq.heappop(frontier)
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heapq.heappush(frontier, (heap[child], child))
            if self._entries.get(entry[2]) is entry:
                yield entry[2]

    def _clear_dead(self) -> None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        if len(heap) > 2 * len(entries) + MIN_DEAD:
            self._heap = list(entries.values())
            heapq.heapify(self._heap)
