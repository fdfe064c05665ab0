"""What a restarted service or another process wants to know of the pools: noted, written behind, read at the start.

Never awaited inside a step: a step notes what changed, and one task writes it some 20 ms later. With Redis down steps
go on; the notes are bounded, and a snapshot brings Redis up to date when it is back. The keys: `metadata_record`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from kvcache_service import metadata_reader as reader
from kvcache_service import metadata_record as record
from kvcache_service.core.events import Event
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.restore import Records
from kvcache_service.metadata_journal import Author, Journal
from kvcache_service.metadata_writer import MetadataWriter, Owed
from kvcache_service.redis_client import FAILURES
from octavo import logs

SWEEP_AFTER_S = 60.0  # from the start: records that nobody has claimed by then are dropped
LAST_WRITE_S = 0.5  # at the end; what Redis has not taken by then costs the next service cached prefixes
ANSWER_TIMEOUT_S = 1.0  # of Redis, at the start; then the service starts with nothing

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """How far Redis is behind."""

    is_connected: bool
    lag_s: float  # age of the oldest change that is not written
    num_pending: int
    num_errors: int


class MetadataStore:
    """`opened`, `changed` and the others like them only note, and cost microseconds."""

    def __init__(self, pools: Pools, writer: MetadataWriter, author: Author) -> None:
        self._pools = pools
        self._writer = writer
        self._author = author

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        pools: Pools,
        *,
        kvcache_incarnation: int,
        kvcache_id: str = "kvcache",
        namespace_key: bytes = b"",
    ) -> AsyncIterator[Self]:
        """A store that writes while the block runs, and once more at its end. Does not wait for Redis to be there.

        What is in a namespace comes back only to a service with the same namespace key.
        """
        to_unix_s = time.time() - time.monotonic()
        author = Author(
            kvcache_id,
            kvcache_incarnation,
            record.key_check(namespace_key),
            lambda now_s: now_s + to_unix_s,
        )
        writer = MetadataWriter(url, author)
        store = cls(pools, writer, author)
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(writer.run(), name="metadata-writer")
                sweeping = tasks.create_task(store._sweep_in_time(), name="metadata-sweep")
                try:
                    yield store
                finally:
                    sweeping.cancel()
                    writer.leave()
                    _, late = await asyncio.wait({writing}, timeout=LAST_WRITE_S)
                    if late:
                        _log.warning("metadata_not_written", waited_s=LAST_WRITE_S, num_pending=store.stats.num_pending)
                        writing.cancel()
        finally:
            await writer.close()

    @property
    def stats(self) -> WriterStats:
        """How far Redis is behind, now."""
        now_s, journals, owed = time.monotonic(), self._writer.journals.values(), self._writer.owed
        num_owed = len(owed.closed) + (owed.public is not None) + owed.is_sweep_due
        return WriterStats(
            is_connected=self._writer.is_connected,
            lag_s=max((journal.lag_s(now_s) for journal in journals), default=0.0),
            num_pending=sum(journal.num_pending for journal in journals) + num_owed,
            num_errors=self._writer.num_errors,
        )

    async def restore(self, public: PublicPrefixes) -> None:
        """Once, before serving: give the pools, and `public`, what the service before this one has recorded of them.

        If Redis does not answer within a second, pools will begin with their declared tables, and the public prefixes
        come back with its first answer, before any of them is written.
        """
        started_s = time.monotonic()
        client, author = self._writer.client, self._author
        self._writer.public, self._writer.owed.is_public_unread = public, True
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._writer.read_public()
            found = await reader.pools(client, author.kvcache_id, key_check=author.key_check, now_s=started_s)
        except (*FAILURES, TimeoutError) as error:
            self._pools.records = Records(is_known=False)
            _log.warning("metadata_not_read", problem=str(error) or type(error).__name__)
            return
        self._pools.records = Records(found)
        _log.info(
            "metadata_read",
            num_pools=len(found),
            num_blocks=sum(len(each.blocks) for each in found),
            num_public_prefixes=len(public),
            duration_s=round(time.monotonic() - started_s, 3),
        )

    def opened(self, pool: Pool) -> None:
        """A pool was opened, perhaps again: all of it is to be written."""
        self._writer.owed.closed.discard(pool.key.pool_id)
        self._writer.journals[pool.key.pool_id] = Journal(pool, self._author, now_s=time.monotonic())
        self._writer.wake()

    def changed(self, pool: Pool, events: Iterable[Event]) -> None:
        """A plan was applied, prefixes were forgotten, or pins began or ended."""
        self._writer.journals[pool.key.pool_id].note(events, time.monotonic())
        self._writer.wake()

    def closed(self, pool_id: str) -> None:
        """A pool is over: what Redis holds of it is void."""
        self._writer.journals.pop(pool_id, None)
        self._writer.owed.closed.add(pool_id)
        self._writer.wake()

    def public_prefixes_changed(self, prefixes: Mapping[str, Sequence[int]]) -> None:
        """These are the public prefixes now."""
        self._writer.owed.public = record.packed_prefixes(prefixes)
        self._writer.wake()

    def erased(self, namespace: bytes) -> None:
        """A namespace was erased, and `changed` said so of every open pool: records not claimed yet lose it here."""
        self._writer.owed.closed.update(self._pools.records.erase(namespace))
        if not self._pools.records.is_known:
            self._writer.owed.is_sweep_due = True  # what they hold of it cannot be told apart
        self._writer.wake()

    async def flushed(self, timeout_s: float) -> bool:
        """Whether Redis has taken, within this time, everything that was noted before."""
        marks = {journal: journal.num_noted for journal in self._writer.journals.values()}
        noted = self._writer.owed
        owed = Owed(set(noted.closed), noted.public, is_sweep_due=noted.is_sweep_due)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._has_written(marks, owed):
                    await self._writer.round_done.wait()
                return True
        return False

    def _has_written(self, marks: Mapping[Journal, int], owed: Owed) -> bool:
        left = self._writer.owed
        is_owed = (
            left.closed & owed.closed
            or (left.is_sweep_due and owed.is_sweep_due)
            or (left.public is not None and owed.public is not None)
        )
        return not is_owed and all(self._is_known(journal, mark) for journal, mark in marks.items())

    def _is_known(self, journal: Journal, mark: int) -> bool:
        """Of a pool that was opened again meanwhile its snapshot says all of it; of a closed one nothing is left."""
        pool_id = journal.pool.key.pool_id
        present = self._writer.journals.get(pool_id)
        if present is None:
            return pool_id not in self._writer.owed.closed
        return present.num_written >= (mark if present is journal else 1)

    async def _sweep_in_time(self) -> None:
        await asyncio.sleep(SWEEP_AFTER_S)
        self._pools.records.sweep()
        self._writer.owed.is_sweep_due = True
        self._writer.wake()
