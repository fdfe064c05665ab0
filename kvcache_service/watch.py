"""Tells watchers what changes in the prefix caches, each at its own pace: they read one bounded log, and a step that
adds to it waits for none of them. One that falls behind the log starts anew with what is cached by then.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from itertools import islice

from kvcache_service.core.event_log import CaughtUp, EventLog, Restart, RestartReason, WatchedEvent
from kvcache_service.core.events import Event
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.core.residency import behind_their_parents, stored_runs

MAX_BATCH_EVENTS, MAX_BATCH_BYTES = 256, 256 * 1024  # told at a time
STATE_PIECE = 512  # cached keys told at a time, so that a watcher that starts anew never holds up a step for long


class Watches:
    """The watchers of one life of this service."""

    def __init__(self, pools: Pools, *, incarnation: int, log: EventLog | None = None) -> None:
        self._pools = pools
        self._incarnation = incarnation
        self._log = EventLog() if log is None else log
        self._changed = asyncio.Event()
        self._is_leaving = False

    @property
    def last_num(self) -> int:
        """The last event."""
        return self._log.last_num

    def note(self, pool_id: str, events: Iterable[Event]) -> None:
        """Something changed in a pool."""
        if self._log.append(pool_id, events):
            self._changed.set()
            self._changed = asyncio.Event()

    def leave(self) -> None:
        """Nothing will happen any more: watchers hear what has, and then the end."""
        self._is_leaving = True
        self._changed.set()

    def forget_past(self) -> None:
        """What was stored so far is told to nobody any more, token ids least of all; what is cached still is."""
        self._log.forget_past()

    async def follow(
        self, pool_id: str, *, incarnation: int, after: int
    ) -> AsyncGenerator[Sequence[WatchedEvent], None]:
        """What happens in a pool, or with an empty name in all, behind event `after` of an incarnation, to its end."""
        reason = self._why_not_from(incarnation, after)
        while True:
            if reason is not None:
                after = self._log.last_num
                yield [WatchedEvent(0, "", Restart(reason))]
                for events in self._state(pool_id):  # what changes meanwhile comes behind it, and is repeated or undone
                    yield events
                yield [WatchedEvent(after, "", CaughtUp())]
            while self._log.reaches_back_to(after):
                changed = self._changed
                logged = self._log.after(after, max_events=MAX_BATCH_EVENTS, max_bytes=MAX_BATCH_BYTES)
                if not logged and self._is_leaving:
                    return
                if not logged:
                    await changed.wait()
                    continue
                after = logged[-1].event_num
                if wanted := [event for event in logged if pool_id in ("", event.pool_id)]:
                    yield wanted
                else:
                    await asyncio.sleep(0)
            reason = RestartReason.TOO_SLOW

    def _why_not_from(self, incarnation: int, after: int) -> RestartReason | None:
        if incarnation == 0:
            return RestartReason.NEW
        if incarnation != self._incarnation:
            return RestartReason.OTHER_INCARNATION
        return None if self._log.reaches_back_to(after) else RestartReason.TOO_OLD

    def _state(self, pool_id: str) -> Iterator[Sequence[WatchedEvent]]:
        """What is cached, piece by piece; parents come before their children."""
        for pool in [pool for pool in self._pools if pool_id in ("", pool.key.pool_id)]:
            keys = behind_their_parents(pool.manager.pool, list(pool.manager.pool.cache))
            while piece := list(islice(keys, STATE_PIECE)):
                if not self._is_open(pool):
                    break  # its end is an event
                runs = stored_runs(pool.manager.pool, piece)
                if events := [WatchedEvent(0, pool.key.pool_id, stored) for stored in runs]:
                    yield events

    def _is_open(self, pool: Pool) -> bool:
        return any(other is pool for other in self._pools)
