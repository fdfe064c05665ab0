"""Plays servicer and scheduler of one pool, and compares what Redis holds of it with the pool."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvcache_service import metadata_reader, metadata_record, redis_client
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.plan import Admits, Declaration, DeclaredTable, Frees, Plan
from kvcache_service.core.pools import Pool, PoolKey, Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.request import Identity
from kvcache_service.core.restore import Opening, PoolRecord
from kvcache_service.metadata_store import MetadataStore

FINGERPRINT = Fingerprint(model_digest=b"\x00\xffmodel", kv_dtype="float32")
INCARNATION = 77
SCHEDULER = 900
NAMESPACE_KEY = b"k" * 32


class Driver:
    """One worker's pool; its plans are acknowledged one by one."""

    def __init__(self, store: MetadataStore, pools: Pools, pool_id: str = "w1") -> None:
        self.store, self.pools, self.pool_id = store, pools, pool_id
        self.public = PublicPrefixes()
        self.pool: Pool
        self.num_openings = 0

    def open(
        self,
        num_blocks: int = 101,
        *,
        incarnation: int = 5,
        tables: Sequence[DeclaredTable] = (),
        opening: Opening | None = None,
    ) -> None:
        self.num_openings += 1
        key = PoolKey(pool_id=self.pool_id, incarnation=incarnation, session=self.num_openings)
        opening = opening or Opening(scheduler_incarnation=SCHEDULER, number=self.num_openings)
        self.pool = self.pools.open(key, num_blocks, fingerprint=FINGERPRINT, tables=tables, opening=opening)
        self.pool.manager.take_events()
        self.store.opened(self.pool)

    def prefill(self, handle: int, prompt: Sequence[int], extras: Extras = NO_EXTRAS) -> list[int]:
        """Admit a prompt, acknowledge it, release it; the blocks that it got new."""
        step = self.pool.step + 1
        admits = Admits(handles=[handle], num_known_tokens=[len(prompt)], num_watermark_blocks=[0])
        declares = [Declaration(handle=handle, token_ids=prompt, identity=Identity(extras=extras))]
        grants = self.apply(Plan(step=step, token_budget=10**6, max_admissions=1, declares=declares, admits=admits))
        frees = Frees(handles=[handle], epochs=[0])
        self.apply(Plan(step=step + 1, acked_step=step, frees=frees, forgotten_handles=[handle]))
        (admission,) = grants.admissions
        return list(admission.block_ids[admission.num_cached_tokens // self.pool.manager.block_size :])

    def apply(self, plan: Plan) -> Any:
        """Nothing is awaited between a plan and its answer, so a Redis that is away or hangs cannot hold it up."""
        grants = self.pool.plan_step(plan, str(plan.step).encode())
        self.tell()
        return grants

    def tell(self) -> None:
        self.store.changed(self.pool, self.pool.manager.take_events())

    def pin(self, pin_id: str, prompt: Sequence[int], *, ttl_s: float, extras: Extras = NO_EXTRAS) -> None:
        block_ids = self.pool.manager.lookup(prompt, extras=extras, is_committed_only=True)
        assert block_ids
        name = PinName(extras.namespace, pin_id)
        self.pool.manager.pins.put(name, block_ids, expires_s=time.monotonic() + ttl_s)
        self.tell()

    def close(self) -> None:
        self.pools.close(self.pool_id, self.pool.key.incarnation)
        self.store.closed(self.pool_id)


@asynccontextmanager
async def running(
    url: str, *, incarnation: int = INCARNATION, namespace_key: bytes = NAMESPACE_KEY, restoring: bool = False
) -> AsyncIterator[Driver]:
    """The metadata side of one life of the service."""
    pools = Pools()
    async with MetadataStore.connect(url, pools, kvcache_incarnation=incarnation, namespace_key=namespace_key) as store:
        driver = Driver(store, pools)
        if restoring:
            await store.restore(driver.public)
        yield driver


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)


async def record(url: str, pool_id: str = "w1", *, key_check: bytes | None = None) -> PoolRecord | None:
    """What Redis holds of a pool now."""
    client = redis_client.client(url)
    try:
        return await metadata_reader.pool(
            client,
            metadata_record.pool_keys("kvcache", pool_id),
            key_check=metadata_record.key_check(NAMESPACE_KEY) if key_check is None else key_check,
            now_s=time.monotonic(),
        )
    except redis_client.FAILURES:
        return None
    finally:
        await redis_client.close(client)


async def up_to_date(driver: Driver, url: str, timeout_s: float = 10.0) -> PoolRecord:
    """Return when Redis names the last plan; then what it says must be what the pool says."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = await record(url, driver.pool_id)
            if found is not None and found.position == driver.pool.position and driver.store.stats.num_pending == 0:
                break
            await asyncio.sleep(0.01)
    agrees(found, driver.pool)
    return found


def agrees(found: PoolRecord, pool: Pool) -> None:
    """A record that covers the last plan of a pool says what the pool says."""
    blocks = pool.manager.pool
    there = {
        block.key: (block.parent_key, block.depth, block.namespace, tuple(block.block_ids)) for block in found.blocks
    }
    here = {
        key: (blocks.parent(copies[0]), blocks.depth(copies[0]), blocks.namespace(copies[0]), tuple(copies))
        for key in blocks.cache
        if (copies := blocks.committed_copies(key))
    }
    assert there == here
    pins = {PinName(pin.namespace, pin.pin_id): tuple(pin.block_ids) for pin in found.pins}
    assert pins == {name: tuple(pin.block_ids) for name in pool.manager.pins if (pin := pool.manager.pins.get(name))}
    assert found.totals == metadata_record.totals(pool)
    assert found.tenants == pool.manager.statistics.by_namespace
    assert (found.incarnation, found.scheduler_incarnation) == (pool.key.incarnation, pool.scheduler_incarnation)
    assert (found.num_blocks, found.fingerprint) == (blocks.num_blocks, pool.fingerprint)
