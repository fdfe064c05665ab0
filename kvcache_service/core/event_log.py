"""The last events of all pools, numbered from 1 without gaps, for watchers that read at their own pace. Bounded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, BlocksStored, Event

MAX_EVENTS = 65536
MAX_BYTES = 64 << 20

# What a log entry takes in memory, by experience: itself, and a hash or a token id in it.
ENTRY_BYTES, HASH_ENTRY_BYTES, TOKEN_BYTES = 300, 60, 4


class RestartReason(Enum):
    """Why a watcher's index starts anew."""

    NEW = "NEW"  # it has nothing
    OTHER_INCARNATION = "OTHER_INCARNATION"  # what it has is of another life of this service
    TOO_OLD = "TOO_OLD"  # events that it has not seen are gone
    TOO_SLOW = "TOO_SLOW"  # they went while it watched


@dataclass(frozen=True, slots=True)
class Restart:
    """Forget every pool watched: what is cached follows."""

    reason: RestartReason


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What was cached at the restart is complete; what happens from here on has numbers."""


CacheEvent = BlocksStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class WatchedEvent:
    """What a watcher is told; number 0 until it has caught up, because it cannot go on from there."""

    event_num: int
    pool_id: str
    event: CacheEvent | Restart | CaughtUp


@dataclass(frozen=True, slots=True)
class LoggedEvent(WatchedEvent):
    """What happened in a pool."""

    event: CacheEvent


class EventLog:
    """Keeps what an index of the prefix caches needs; older events make room for new ones."""

    __slots__ = ("_events", "_first_num", "_max_bytes", "_max_events", "_num_bytes", "last_num")

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self.last_num = 0
        self._first_num = 1  # the oldest that is kept
        self._events: dict[int, LoggedEvent] = {}
        self._num_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._events)

    def append(self, pool_id: str, events: Iterable[Event]) -> bool:
        """Number what happened in a pool; false if nothing of it concerns an index."""
        before = self.last_num
        for event in events:
            if isinstance(event, (BlocksStored, BlockRemoved, AllBlocksCleared)):
                self.last_num += 1
                self._events[self.last_num] = LoggedEvent(self.last_num, pool_id, event)
                self._num_bytes += _num_bytes(event)
        while len(self._events) > self._max_events or self._num_bytes > self._max_bytes:
            self._num_bytes -= _num_bytes(self._events.pop(self._first_num).event)
            self._first_num += 1
        return self.last_num > before

    def forget_past(self) -> None:
        """Keep nothing of what has happened; readers that do not know all of it start anew."""
        self._events.clear()
        self._first_num = self.last_num + 1
        self._num_bytes = 0

    def reaches_back_to(self, event_num: int) -> bool:
        """Whether everything after this event is kept."""
        return self._first_num <= event_num + 1 <= self.last_num + 1

    def after(self, event_num: int, *, max_events: int, max_bytes: int) -> Sequence[LoggedEvent]:
        """The next events after this one, at least one if there is one, and not many more bytes than asked."""
        events: list[LoggedEvent] = []
        num_bytes = 0
        for number in range(event_num + 1, min(event_num + max_events, self.last_num) + 1):
            events.append(self._events[number])
            num_bytes += _num_bytes(events[-1].event)
            if num_bytes > max_bytes:
                break
        return events


def _num_bytes(event: CacheEvent) -> int:
    if isinstance(event, BlocksStored):
        return ENTRY_BYTES + HASH_ENTRY_BYTES * len(event.block_hashes) + TOKEN_BYTES * len(event.token_ids)
    return ENTRY_BYTES
