"""Writes behind to Redis what a restarted service or another process wants to know of the pools.

Never awaited inside a step: a step notes what changed, and one task writes it some 20 ms later. With Redis down steps
go on; the notes are bounded, and a snapshot brings Redis up to date when it is back. The keys: `metadata_record`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.typing import EncodableT, FieldT

from kvcache_service import metadata_record as record
from kvcache_service.core.events import Event
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.metadata_record import Changes
from octavo import logs

GATHER_S = 0.02  # how long changes are gathered before they are written
TIMEOUT_S = 1.0  # of every connect and every reply
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
EXPIRY_S = 24 * 3600  # of a pool's keys after the last write
REFRESH_S = EXPIRY_S / 4  # a pool without changes is written this often
STAGED_EXPIRY_S = 60
SNAPSHOT_PIECE = 256  # keys written at a time, so that a snapshot never holds up a step for long

# Writes changes only onto the record that they follow: a Redis that lost writes, or that another service writes to,
# is noticed here, before it could call a stale record new. 1 = written, 0 = another record is there.
# KEYS meta, blocks. ARGV kvcache_incarnation, record, expiry; fields and values to set in meta, their number before
# them; the same for blocks; fields that are gone from blocks.
WRITE_CHANGES = """
local there = redis.call('HMGET', KEYS[1], 'kvcache_incarnation', 'record')
if there[1] ~= ARGV[1] or there[2] ~= ARGV[2] then return 0 end
local at = 4
local function take_pairs(key)
  local last = at + tonumber(ARGV[at])
  for i = at + 1, last, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  at = last + 1
end
take_pairs(KEYS[1])
take_pairs(KEYS[2])
for i = at, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = 1, 2 do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
return 1
"""

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """How far Redis is behind."""

    is_connected: bool
    lag_s: float  # age of the oldest change that is not written
    num_pending: int
    num_errors: int


class MetadataStore:
    """Notes what changed and writes it. `opened`, `changed` and `closed` only note, and cost microseconds."""

    def __init__(self, client: redis.asyncio.Redis, pools: Pools, *, kvcache_incarnation: int) -> None:
        self._client = client
        self._pools = pools
        self._incarnation = kvcache_incarnation
        self._write_changes_script = client.register_script(WRITE_CHANGES)
        self._changes: dict[str, Changes] = {}
        self._closed: set[str] = set()
        self._record = 0  # number of the last write of any pool
        self._written: dict[str, int] = {}  # pool id -> number of its last write
        self._is_connected = False
        self._was_lost = False
        self._num_errors = 0
        self._changed = asyncio.Event()
        self._leaving = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, pools: Pools, *, kvcache_incarnation: int) -> AsyncIterator[Self]:
        """A store that writes while the block runs, and once more at its end. Does not wait for Redis to be there."""
        client = redis.asyncio.from_url(
            url,
            retry=Retry(NoBackoff(), 0),  # its own default waits for seconds within one command
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
        store = cls(client, pools, kvcache_incarnation=kvcache_incarnation)
        async with client, asyncio.TaskGroup() as tasks:
            tasks.create_task(store._write_behind())
            try:
                yield store
            finally:
                store._leaving.set()
                store._changed.set()

    @property
    def stats(self) -> WriterStats:
        """How far Redis is behind, now."""
        now_s = time.monotonic()
        return WriterStats(
            is_connected=self._is_connected,
            lag_s=max((changes.lag_s(now_s) for changes in self._changes.values()), default=0.0),
            num_pending=sum(len(changes.keys) for changes in self._changes.values()) + len(self._closed),
            num_errors=self._num_errors,
        )

    def opened(self, pool: Pool) -> None:
        """A pool was opened, perhaps again: all of it is to be written."""
        pool.manager.take_events()
        self._closed.discard(pool.key.pool_id)
        self._changes[pool.key.pool_id] = Changes(time.monotonic())
        self._changed.set()

    def changed(self, pool: Pool, events: Iterable[Event]) -> None:
        """A plan was applied, or prefixes were forgotten."""
        self._changes[pool.key.pool_id].note(events, time.monotonic())
        self._changed.set()

    def closed(self, pool_id: str) -> None:
        """A pool is over, and what Redis holds of it."""
        del self._changes[pool_id]
        self._written.pop(pool_id, None)
        self._closed.add(pool_id)
        self._changed.set()

    async def _write_behind(self) -> None:
        retry_s = FIRST_RETRY_S
        self._changed.set()  # look whether Redis is there
        while True:
            await self._wait_for_changes()
            if await self._write_all():
                retry_s = FIRST_RETRY_S
            elif not self._leaving.is_set():
                await self._pause(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                self._changed.set()
            if self._leaving.is_set():
                return

    async def _wait_for_changes(self) -> None:
        """Return some 20 ms after the first change, or at once when the service leaves."""
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._changed.wait()
        except TimeoutError:
            for pool in self._pools:
                self.changed(pool, ())
        await self._pause(GATHER_S)
        self._changed.clear()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    async def _write_all(self) -> bool:
        """Write what every pool has to say; false if Redis did not take it."""
        try:
            if not self._is_connected:
                await self._client.ping()
                self._reached()
            for pool_id in list(self._closed):
                await self._client.unlink(
                    record.meta_key(pool_id), record.blocks_key(pool_id), record.staged_key(pool_id)
                )
                self._closed.discard(pool_id)
            for pool, changes in [(pool, self._changes[pool.key.pool_id]) for pool in self._pools]:
                await self._write(pool, changes)
        except (RedisError, OSError) as error:
            self._lost(error)
            return False
        return True

    async def _write(self, pool: Pool, changes: Changes) -> None:
        if changes.is_empty or self._changes.get(pool.key.pool_id) is not changes:
            return  # nothing to say, or closed or opened again while others were written
        if not changes.needs_snapshot and not await self._write_changes(pool, changes):
            _log.warning("metadata_record_lost", pool_id=pool.key.pool_id)
            changes.start_over(time.monotonic())
        if changes.needs_snapshot:
            await self._write_snapshot(pool, changes)

    async def _write_changes(self, pool: Pool, changes: Changes) -> bool:
        """Write what changed, onto the record written before; false if that is not what Redis holds."""
        pool_id = pool.key.pool_id
        places = record.placements(pool, changes.take())
        held, gone = _flat(_held(places)), _gone(places)
        number = self._record + 1
        facts = _flat(_mapping(record.facts(pool, self._incarnation, number)))
        is_written = await self._write_changes_script(
            keys=[record.meta_key(pool_id), record.blocks_key(pool_id)],
            args=[
                *(self._incarnation, self._written[pool_id], EXPIRY_S),
                *(len(facts), *facts, len(held), *held),
                *gone,
            ],
        )
        if is_written:
            self._confirm(pool_id, changes, number)
        return bool(is_written)

    async def _write_snapshot(self, pool: Pool, changes: Changes) -> None:
        """Write everything, piece by piece, beside the old record; then put it in its place with what changed since."""
        pool_id = pool.key.pool_id
        staged, blocks, meta = record.staged_key(pool_id), record.blocks_key(pool_id), record.meta_key(pool_id)
        changes.keys.clear()
        changes.needs_snapshot = False
        await self._client.unlink(staged)
        keys = list(pool.manager.pool.cache)
        for first in range(0, len(keys), SNAPSHOT_PIECE):
            await self._stage(pool, staged, keys[first : first + SNAPSHOT_PIECE])
        if self._changes.get(pool_id) is not changes or changes.needs_snapshot:
            return  # opened again or closed meanwhile, or too much changed: the next round writes it
        places = record.placements(pool, changes.take())
        number = self._record + 1
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(staged, record.EMPTY_KEY, b"")  # a hash without fields does not exist and cannot be renamed
            pipe.rename(staged, blocks)
            pipe.hdel(blocks, record.EMPTY_KEY, *_gone(places))
            if held := _held(places):
                pipe.hset(blocks, mapping=held)
            pipe.unlink(meta)
            pipe.hset(meta, mapping=_mapping(record.facts(pool, self._incarnation, number)))
            pipe.expire(meta, EXPIRY_S)
            pipe.expire(blocks, EXPIRY_S)
            await pipe.execute()
        self._confirm(pool_id, changes, number)

    async def _stage(self, pool: Pool, staged: str, keys: list[bytes]) -> None:
        held = _held(record.placements(pool, keys))
        if not held:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(staged, mapping=held)
            pipe.expire(staged, STAGED_EXPIRY_S)
            await pipe.execute()

    def _confirm(self, pool_id: str, changes: Changes, number: int) -> None:
        self._record = number
        changes.written()
        if self._changes.get(pool_id) is changes:
            self._written[pool_id] = number

    def _lost(self, error: Exception) -> None:
        """Redis did not take a write: nobody knows what it holds now."""
        self._num_errors += 1
        for changes in self._changes.values():
            changes.start_over(time.monotonic())
        if not self._was_lost:
            _log.warning("redis_lost", error=str(error), next_try_in_s=FIRST_RETRY_S, longest_retry_s=LONGEST_RETRY_S)
        self._is_connected, self._was_lost = False, True

    def _reached(self) -> None:
        _log.info("redis_reached", num_pools=len(self._changes))
        self._is_connected, self._was_lost = True, False


def _held(places: Mapping[bytes, bytes | None]) -> dict[FieldT, EncodableT]:
    return {key: block_ids for key, block_ids in places.items() if block_ids is not None}


def _gone(places: Mapping[bytes, bytes | None]) -> list[bytes]:
    return [key for key, block_ids in places.items() if block_ids is None]


def _mapping(facts: Mapping[str, str | int | bytes]) -> dict[FieldT, EncodableT]:
    return {name: value for name, value in facts.items()}  # noqa: C416 - the client's types want this one


def _flat(mapping: Mapping[FieldT, EncodableT]) -> list[EncodableT]:
    return [item for pair in mapping.items() for item in pair]
