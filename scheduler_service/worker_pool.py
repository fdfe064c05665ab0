"""Whether one worker's pool is open at the KV cache service, and when it is asked for again. Knows no plans."""

import asyncio
from collections.abc import Callable, Iterable

from octavo import logs
from octavo.client import RETRY_SCHEDULE_S, retry_pause_s
from octavo.loop_clock import now_s
from scheduler_service.core.grant_log import Opening
from scheduler_service.core.plan import DeclaredTable, PoolFigures
from scheduler_service.kvcache_client import AWAY_S, KVCacheClient, PoolLost
from scheduler_service.worker_link import WorkerLink

_log = logs.get(__name__)


class WorkerPool:
    """Not open at first. `changed` is called when it is to be opened."""

    def __init__(self, link: WorkerLink, kvcache: KVCacheClient, *, changed: Callable[[], None]) -> None:
        self.is_open = False
        self.is_due = True  # it is not open, and may be tried now
        self._link = link
        self._kvcache = kvcache
        self._changed = changed
        self._lost_s: float | None = None  # when it was, while it is
        self._num_tries = 0

    @property
    def is_away(self) -> bool:
        """Whether nothing has come of the service, or of opening the pool again, for AWAY_S."""
        is_lost = self._lost_s is not None and now_s() - self._lost_s >= AWAY_S
        return is_lost or not self._kvcache.is_connected

    def reopen(self) -> None:
        """What is open is not as it should be: open it, or open it again."""
        if self.is_open:
            self._lost_s = now_s()
        self.is_open = False
        self.is_due = True
        self._changed()

    def reopen_if_gone(self) -> None:
        """The service may have restarted."""
        if self.is_open and not self._kvcache.has_pool(self._link.hello):
            self.reopen()

    async def open(self, tables: Iterable[DeclaredTable], opening: Opening) -> PoolFigures | None:
        """Open it with the tables in use; how it is used then. `opened` makes it so.

        None when the service is away; it is due again by RETRY_SCHEDULE_S. Raises PoolRefused.
        """
        self.is_due = False
        try:
            return await self._kvcache.open_pool(
                self._link.hello, tables, opening=opening, scheduler_incarnation=self._link.scheduler_incarnation
            )
        except PoolLost as lost:
            if self._num_tries == 0:
                _log.warning(
                    "kvcache_unreachable", worker_id=self._link.hello.worker_id, problem=str(lost),
                    next_tries_in_s=list(RETRY_SCHEDULE_S), then_every_s=RETRY_SCHEDULE_S[-1],
                )  # fmt: skip
            asyncio.get_running_loop().call_later(retry_pause_s(self._num_tries), self.reopen)
            self._num_tries += 1
            return None

    def opened(self, *, is_current: bool) -> None:
        """It is open; for a session that is over meanwhile it has to be opened again."""
        self._num_tries = 0
        self.is_open = is_current
        self.is_due = not is_current
        if is_current:
            self._lost_s = None
