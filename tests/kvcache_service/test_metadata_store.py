"""What a real Redis holds after what the pools did, and what happens when it is killed."""

import asyncio
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis.asyncio

from kvcache_service import metadata_record as record
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.plan import Admits, Declaration, Frees, Plan
from kvcache_service.core.pools import Pool, PoolKey, Pools
from kvcache_service.metadata_record import MAX_CHANGED_KEYS, Changes
from kvcache_service.metadata_store import MetadataStore
from tests.kvcache_service.conftest import RealRedis
from tests.kvcache_service.rig import family

KEY = PoolKey(pool_id="w1", incarnation=5, session=1)
FINGERPRINT = Fingerprint(model_digest=b"\x00\xffmodel", kv_dtype="float32")
INCARNATION = 77
STEP_LIMIT_S = 0.05  # a step never waits for Redis; what it may take on a busy machine


class Driver:
    """Plays servicer and scheduler of one pool."""

    def __init__(self, store: MetadataStore, pools: Pools) -> None:
        self.store, self.pools = store, pools
        self.pool: Pool

    def open(self, num_blocks: int = 101, session: int = 1) -> None:
        key = PoolKey(pool_id="w1", incarnation=5, session=session)
        self.pool = self.pools.open(key, num_blocks, fingerprint=FINGERPRINT, tables=[])
        self.store.opened(self.pool)

    def prefill(self, handle: int, prompt: list[int]) -> None:
        """Admit a prompt, acknowledge it, release it."""
        step = self.pool.step + 1
        admits = Admits(handles=[handle], num_known_tokens=[len(prompt)], num_watermark_blocks=[0])
        declares = [Declaration(handle=handle, token_ids=prompt)]
        self.apply(Plan(step=step, token_budget=10**6, max_admissions=1, declares=declares, admits=admits))
        frees = Frees(handles=[handle], epochs=[0])
        self.apply(Plan(step=step + 1, acked_step=step, frees=frees, forgotten_handles=[handle]))

    def apply(self, plan: Plan) -> None:
        started_s = time.monotonic()
        self.pool.plan_step(plan, b"")
        self.store.changed(self.pool, self.pool.manager.take_events())
        assert time.monotonic() - started_s < STEP_LIMIT_S


@asynccontextmanager
async def running(server: RealRedis) -> AsyncIterator[Driver]:
    pools = Pools()
    async with MetadataStore.connect(server.url, pools, kvcache_incarnation=INCARNATION) as store:
        yield Driver(store, pools)


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)


def held(server: RealRedis) -> dict[bytes, tuple[int, ...]]:
    """Block key -> block ids, as Redis has them."""
    blocks: dict[bytes, bytes] = server.client.hgetall(record.blocks_key("w1"))  # type: ignore[assignment]
    return {key: struct.unpack(f"<{len(packed) // 4}I", packed) for key, packed in blocks.items()}


def facts(server: RealRedis) -> dict[str, bytes]:
    meta: dict[bytes, bytes] = server.client.hgetall(record.meta_key("w1"))  # type: ignore[assignment]
    return {name.decode(): value for name, value in meta.items()}


def expected(pool: Pool) -> dict[bytes, tuple[int, ...]]:
    blocks = pool.manager.pool
    placed = {key: tuple(blocks.committed_copies(key)) for key in blocks.cache}
    return {key: block_ids for key, block_ids in placed.items() if block_ids}


async def up_to_date(driver: Driver, server: RealRedis) -> None:
    """Redis knows the last plan, and then what it says must be what the pool says."""
    await eventually(lambda: facts(server).get("step") == str(driver.pool.step).encode())
    assert held(server) == expected(driver.pool)


async def test_an_opened_pool_is_written_with_its_fingerprint(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        await up_to_date(driver, real_redis)
    written = facts(real_redis)
    assert written["model_digest"] == FINGERPRINT.model_digest
    names = ("incarnation", "session", "step", "num_blocks", "block_size", "schema")
    assert [written[name] for name in names] == [b"5", b"1", b"0", b"101", b"16", b"1"]
    assert written["kvcache_incarnation"] == str(INCARNATION).encode()


async def test_committed_blocks_are_written_with_the_last_plan_they_cover(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        assert sorted(held(real_redis).values()) == [(1,), (2,), (3,)]
        assert facts(real_redis)["step"] == b"2"


async def test_reserved_blocks_are_not_written(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        admits = Admits(handles=[0], num_known_tokens=[48], num_watermark_blocks=[0])
        declares = [Declaration(handle=0, token_ids=family("A", 48))]
        driver.apply(Plan(step=1, token_budget=100, max_admissions=1, declares=declares, admits=admits))
        await up_to_date(driver, real_redis)
        assert held(real_redis) == {}


async def test_evicted_blocks_disappear_and_copies_are_told_apart(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open(num_blocks=9)
        for handle, name in enumerate("ABCABDA"):
            driver.prefill(handle, family(name, 48))
            await up_to_date(driver, real_redis)
        assert 0 < len(held(real_redis)) < 9


async def test_a_reset_empties_the_record(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        assert driver.pools.reset_prefix_cache("w1")
        driver.store.changed(driver.pool, driver.pool.manager.take_events())
        await eventually(lambda: held(real_redis) == {})


async def test_a_closed_pool_leaves_no_keys(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        driver.pools.close("w1", 5)
        driver.store.closed("w1")
        await eventually(lambda: real_redis.client.keys() == [])


async def test_keys_of_a_pool_are_bounded_expire_and_share_a_slot(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open(num_blocks=9)
        for handle in range(20):
            driver.prefill(handle, family(chr(65 + handle), 48))
        await up_to_date(driver, real_redis)
        keys: list[bytes] = real_redis.client.keys()  # type: ignore[assignment]
        assert sorted(keys) == [record.blocks_key("w1").encode(), record.meta_key("w1").encode()]
        assert all(0 < real_redis.client.ttl(key) <= 24 * 3600 for key in keys)
        assert all(b"{w1}" in key for key in keys)
        assert len(held(real_redis)) <= 8


async def test_what_is_pending_is_written_when_the_service_leaves(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
    assert held(real_redis) == expected(driver.pool)
    assert facts(real_redis)["step"] == b"2"


async def test_steps_go_on_while_redis_is_dead_and_a_snapshot_follows(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        real_redis.kill()
        for handle in range(1, 30):
            driver.prefill(handle, family(chr(65 + handle), 160))
            await asyncio.sleep(0.01)
        await eventually(lambda: driver.store.stats.num_errors > 0)
        stats = driver.store.stats
        assert not stats.is_connected
        assert stats.lag_s > 0
        real_redis.start()
        await up_to_date(driver, real_redis)
        await eventually(lambda: driver.store.stats.is_connected and driver.store.stats.lag_s == 0)
        driver.prefill(100, family("z", 48))
        await up_to_date(driver, real_redis)


async def test_pools_may_close_and_come_back_while_another_is_written(real_redis: RealRedis):
    pools = Pools()

    def open_pool(pool_id: str, incarnation: int) -> None:
        key = PoolKey(pool_id=pool_id, incarnation=incarnation, session=1)
        store.opened(pools.open(key, 101, fingerprint=FINGERPRINT, tables=[]))

    async with redis.asyncio.from_url(real_redis.url) as client:
        store = MetadataStore(client, pools, kvcache_incarnation=INCARNATION)
        assert await store._write_all()
        for pool_id in ("w1", "w2", "w3"):
            open_pool(pool_id, incarnation=6)
        writing = asyncio.create_task(store._write_all())
        await asyncio.sleep(0)  # now it waits for Redis to take w1, and has w2 and w3 before it
        pools.close("w2", 6)
        store.closed("w2")
        open_pool("w3", incarnation=7)
        assert await writing
        assert await store._write_all()
    assert [real_redis.client.exists(record.meta_key(pool_id)) for pool_id in ("w1", "w2", "w3")] == [1, 0, 1]
    assert real_redis.client.hget(record.meta_key("w3"), "incarnation") == b"7"


async def test_a_redis_that_hangs_does_not_hold_up_steps(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        await up_to_date(driver, real_redis)
        real_redis.send(signal.SIGSTOP)
        try:
            for handle in range(20):
                driver.prefill(handle, family(chr(65 + handle), 48))
                await asyncio.sleep(0.01)
            await eventually(lambda: driver.store.stats.num_errors > 0)
        finally:
            real_redis.send(signal.SIGCONT)
        await up_to_date(driver, real_redis)


async def test_a_redis_that_lost_its_data_gets_a_snapshot(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        real_redis.client.flushall()
        driver.prefill(1, family("B", 48))
        await up_to_date(driver, real_redis)
        assert len(held(real_redis)) == 6


async def test_a_redis_that_went_back_in_time_is_noticed(real_redis: RealRedis):
    """As after a crash that lost the last second: an old record must not be taken for a new one."""
    async with running(real_redis) as driver:
        driver.open(num_blocks=9)
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis)
        old = real_redis.client.dump(record.meta_key("w1")), real_redis.client.dump(record.blocks_key("w1"))
        driver.prefill(1, family("B", 128))  # evicts A
        await up_to_date(driver, real_redis)
        for key, dumped in zip((record.meta_key("w1"), record.blocks_key("w1")), old, strict=True):
            real_redis.client.restore(key, 0, dumped, replace=True)  # type: ignore[arg-type]
        driver.prefill(2, family("C", 16))
        await up_to_date(driver, real_redis)


async def test_the_service_starts_without_redis_and_writes_when_it_is_there(real_redis: RealRedis):
    real_redis.kill()
    async with running(real_redis) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await eventually(lambda: driver.store.stats.num_errors > 0)
        real_redis.start()
        await up_to_date(driver, real_redis)


async def test_a_large_pool_is_written_in_pieces_while_plans_go_on(real_redis: RealRedis):
    async with running(real_redis) as driver:
        driver.open(num_blocks=5001)
        for handle in range(4):
            driver.pool.manager.declare(1000 + handle, family(chr(65 + handle), 16_000))
            driver.pool.manager.admit(1000 + handle)
        driver.pool.manager.ack(1)
        assert len(driver.pool.manager.pool.cache) > MAX_CHANGED_KEYS
        for handle in range(40):
            driver.prefill(handle, family(chr(97 + handle % 26), 160))
            await asyncio.sleep(0)
        await up_to_date(driver, real_redis)
        assert len(held(real_redis)) == len(expected(driver.pool)) > 4000


def test_the_notes_are_bounded():
    changes, pools = Changes(0.0), Pools()
    pool = pools.open(KEY, 5001, fingerprint=FINGERPRINT, tables=[])
    changes.needs_snapshot = False
    pool.manager.declare(0, range(16 * (MAX_CHANGED_KEYS + 1)))
    pool.manager.admit(0)
    pool.manager.ack(1)
    changes.note(pool.manager.take_events(), 1.0)
    assert (len(changes.keys), changes.needs_snapshot) == (0, True)


def test_the_lag_is_that_of_the_oldest_change_that_is_not_known_to_be_written():
    changes = Changes(10.0)
    assert changes.lag_s(11.0) == 1.0
    changes.take()
    changes.note((), 12.0)
    assert changes.lag_s(13.0) == 3.0
    changes.start_over(13.0)  # the write failed
    assert changes.lag_s(14.0) == 4.0
    changes.take()
    changes.written()
    assert changes.lag_s(15.0) == 0.0
    assert changes.is_empty


@pytest.mark.parametrize("pool_id", ["w1", "a{b}c", "worker-7.example"])
def test_all_keys_of_a_pool_have_one_hash_tag(pool_id: str):
    keys = record.meta_key(pool_id), record.blocks_key(pool_id), record.staged_key(pool_id)
    assert len({key.partition("{")[2].partition("}")[0] for key in keys}) == 1
