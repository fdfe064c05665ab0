"""What a real Redis holds after what the pools did, and what happens when it is killed."""

import asyncio
import signal
import time

from kvcache_service import metadata_record as layout
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.plan import Admits, Declaration, Plan
from kvcache_service.metadata_journal import MAX_EVENTS, PIECE_KEYS
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.recorded import (
    FINGERPRINT,
    INCARNATION,
    Driver,
    eventually,
    record,
    running,
    up_to_date,
)
from tests.kvcache_service.rig import family

KEYS = layout.pool_keys("kvcache", "w1")
TENANT = Extras(namespace=b"t" * 16)


def facts(server: RealRedis) -> dict[str, bytes]:
    meta: dict[bytes, bytes] = server.client.hgetall(KEYS.meta)  # type: ignore[assignment]
    return {name.decode(): value for name, value in meta.items()}


async def test_an_opened_pool_is_written_with_its_fingerprint(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        await up_to_date(driver, real_redis.url)
    written = facts(real_redis)
    assert written["model_digest"] == FINGERPRINT.model_digest
    names = ("incarnation", "session", "opening", "step", "num_blocks", "block_size", "schema", "record")
    assert [written[name] for name in names] == [b"5", b"1", b"1", b"0", b"101", b"16", b"2", b"1"]
    assert written["kvcache_incarnation"] == str(INCARNATION).encode()


async def test_committed_blocks_are_written_with_the_last_plan_they_cover(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        found = await up_to_date(driver, real_redis.url)
    assert found.position.step == 2
    assert [(block.depth, list(block.block_ids)) for block in sorted(found.blocks, key=lambda each: each.depth)] == [
        (0, [1]),
        (1, [2]),
        (2, [3]),
    ]


async def test_reserved_blocks_are_not_written(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        admits = Admits(handles=[0], num_known_tokens=[48], num_watermark_blocks=[0])
        declares = [Declaration(handle=0, token_ids=family("A", 48))]
        driver.apply(Plan(step=1, token_budget=100, max_admissions=1, declares=declares, admits=admits))
        found = await up_to_date(driver, real_redis.url)
    assert not found.blocks


async def test_a_pool_with_nothing_but_reserved_blocks_is_written_when_redis_is_back(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        await up_to_date(driver, real_redis.url)
        real_redis.client.flushall()
        admits = Admits(handles=[0], num_known_tokens=[48], num_watermark_blocks=[0])
        declares = [Declaration(handle=0, token_ids=family("A", 48))]
        driver.apply(Plan(step=1, token_budget=100, max_admissions=1, declares=declares, admits=admits))
        await up_to_date(driver, real_redis.url)


async def test_evicted_blocks_disappear_and_copies_are_told_apart(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=9)
        for handle, name in enumerate("ABCABDA"):
            driver.prefill(handle, family(name, 48))
            found = await up_to_date(driver, real_redis.url)
        assert 0 < len(found.blocks) < 9


async def test_namespaces_and_their_totals_are_written(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48), TENANT)
        driver.prefill(1, family("A", 48), TENANT)
        driver.prefill(2, family("A", 48))
        found = await up_to_date(driver, real_redis.url)
    assert {block.namespace for block in found.blocks} == {None, TENANT.namespace}
    assert found.tenants[TENANT.namespace].num_hit_tokens == 32


async def test_a_pin_is_written_with_the_moment_at_which_it_ends(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48), TENANT)
        driver.pin("p", family("A", 48), ttl_s=100.0, extras=TENANT)
        found = await up_to_date(driver, real_redis.url)
        (pin,) = found.pins
        assert (pin.namespace, pin.pin_id, list(pin.block_ids)) == (TENANT.namespace, "p", [1, 2])
        assert 95 < pin.expires_s - time.monotonic() < 101
        raw: dict[bytes, bytes] = real_redis.client.hgetall(KEYS.pins)  # type: ignore[assignment]
        assert abs(int.from_bytes(raw[b"t" * 16 + b"p"][:8], "little") / 1000 - time.time() - 100) < 5
        driver.pool.manager.pins.expire(time.monotonic() + 200)
        driver.tell()
        await up_to_date(driver, real_redis.url)
        assert not real_redis.client.exists(KEYS.pins)


async def test_a_reset_empties_the_record(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        assert driver.pool.manager.reset_prefix_cache()
        driver.tell()
        found = await up_to_date(driver, real_redis.url)
        assert not found.blocks


async def test_a_closed_pool_leaves_no_keys(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        driver.close()
        await eventually(lambda: real_redis.client.keys() == [])


async def test_a_pool_that_is_closed_and_opened_at_once_is_written(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        driver.close()
        await asyncio.sleep(0)
        driver.open(incarnation=6)
        driver.prefill(0, family("B", 48))
        await up_to_date(driver, real_redis.url)
        assert real_redis.client.smembers(layout.directory_key("kvcache")) == {b"w1"}


async def test_keys_of_a_pool_are_bounded_expire_and_share_a_slot(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=9)
        for handle in range(20):
            driver.prefill(handle, family(chr(65 + handle), 48))
        found = await up_to_date(driver, real_redis.url)
        keys: list[bytes] = real_redis.client.keys()  # type: ignore[assignment]
        of_pool = {key.decode() for key in keys if key.decode() != layout.directory_key("kvcache")}
        assert of_pool == {KEYS.meta, KEYS.blocks, KEYS.tenants, KEYS.events}
        assert all(0 < real_redis.client.ttl(key) <= 24 * 3600 for key in of_pool)
        assert all("{kvcache:w1}" in key for key in of_pool)
        assert len(found.blocks) <= 8


async def test_what_is_pending_is_written_when_the_service_leaves(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
    await up_to_date(driver, real_redis.url)


async def test_flushed_says_whether_redis_has_what_was_noted(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        assert await driver.store.flushed(5.0)
        await up_to_date(driver, real_redis.url, timeout_s=0.1)
        real_redis.send(signal.SIGSTOP)
        driver.prefill(1, family("B", 48))
        assert not await driver.store.flushed(0.2)
        real_redis.send(signal.SIGCONT)
        assert await driver.store.flushed(10.0)
        await up_to_date(driver, real_redis.url)


async def test_every_change_is_in_the_event_stream_in_order_and_without_gaps(real_redis: RealRedis):
    """Whoever reads a snapshot of `blocks` and then the stream has what the pool has."""
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=20)
        await up_to_date(driver, real_redis.url)
        for handle in range(30):
            driver.prefill(handle, family(chr(65 + handle % 7), 48))
            await asyncio.sleep(0.01)
        await up_to_date(driver, real_redis.url)
    entries: list[tuple[bytes, dict[bytes, bytes]]] = real_redis.client.xrange(KEYS.events)  # type: ignore[assignment]
    assert [entry_id for entry_id, _ in entries] == [f"{number}-0".encode() for number in range(1, len(entries) + 1)]
    index: dict[bytes, bytes] = {}
    for _, entry in entries:
        if b"snapshot" in entry:
            index.clear()  # the first of all: the pool was empty
            continue
        for key, value in layout.pairs(entry[b"changes"]):
            if value:
                index[key] = value
            else:
                index.pop(key, None)
    assert index == real_redis.client.hgetall(KEYS.blocks)


async def test_the_event_stream_is_bounded(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=20)
        await up_to_date(driver, real_redis.url)
        for number in range(2, MAX_EVENTS + 50):
            real_redis.client.xadd(KEYS.events, {"changes": b""}, id=f"{number}-0")
        real_redis.client.hset(KEYS.meta, "event", MAX_EVENTS + 49)
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        assert real_redis.client.xlen(KEYS.events) == MAX_EVENTS


async def test_public_prefixes_are_written_and_replaced(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.store.public_prefixes_changed({"a": [1, 2], "b": [3]})
        assert await driver.store.flushed(5.0)
        driver.store.public_prefixes_changed({"b": [3, 70_000]})
        assert await driver.store.flushed(5.0)
    assert real_redis.client.hgetall(layout.public_key("kvcache")) == {b"b": b"\x03\0\0\0\x70\x11\x01\0"}


async def test_steps_go_on_while_redis_is_dead_and_a_snapshot_follows(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        real_redis.kill()
        for handle in range(1, 30):
            driver.prefill(handle, family(chr(65 + handle), 160))
            await asyncio.sleep(0.01)
        await eventually(lambda: driver.store.stats.num_errors > 0)
        stats = driver.store.stats
        assert not stats.is_connected
        assert stats.lag_s > 0
        real_redis.start()
        await up_to_date(driver, real_redis.url)
        await eventually(lambda: driver.store.stats.is_connected and driver.store.stats.lag_s == 0)
        driver.prefill(100, family("z", 48))
        await up_to_date(driver, real_redis.url)


async def test_an_idle_pool_is_written_again_when_a_redis_that_lost_everything_is_back(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        real_redis.client.flushall()
        real_redis.kill()
        driver.store.public_prefixes_changed({})  # something else finds out that it is gone
        await eventually(lambda: not driver.store.stats.is_connected)
        real_redis.start()
        await up_to_date(driver, real_redis.url)


async def test_a_redis_that_hangs_does_not_hold_up_steps(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        await up_to_date(driver, real_redis.url)
        real_redis.send(signal.SIGSTOP)
        try:
            for handle in range(20):
                driver.prefill(handle, family(chr(65 + handle), 48))
                await asyncio.sleep(0.01)
            await eventually(lambda: driver.store.stats.num_errors > 0)
        finally:
            real_redis.send(signal.SIGCONT)
        await up_to_date(driver, real_redis.url)


async def test_a_redis_that_lost_its_data_gets_a_snapshot(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        real_redis.client.flushall()
        driver.prefill(1, family("B", 48))
        found = await up_to_date(driver, real_redis.url)
        assert len(found.blocks) == 6
        assert real_redis.client.smembers(layout.directory_key("kvcache")) == {b"w1"}


async def test_a_redis_that_went_back_in_time_is_noticed(real_redis: RealRedis):
    """As after a crash that lost the last second: an old record must not be taken for a new one."""
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=9)
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        old = {key: real_redis.client.dump(key) for key in (KEYS.meta, KEYS.blocks)}
        driver.prefill(1, family("B", 128))  # evicts A
        await up_to_date(driver, real_redis.url)
        for key, dumped in old.items():
            real_redis.client.restore(key, 0, dumped, replace=True)  # type: ignore[arg-type]
        driver.prefill(2, family("C", 16))
        await up_to_date(driver, real_redis.url)


async def test_a_record_of_another_service_is_noticed(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await up_to_date(driver, real_redis.url)
        real_redis.client.hset(KEYS.meta, mapping={"kvcache_incarnation": 78, "step": 40})
        driver.prefill(1, family("B", 48))
        await up_to_date(driver, real_redis.url)


async def test_the_service_starts_without_redis_and_writes_when_it_is_there(real_redis: RealRedis):
    real_redis.kill()
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, family("A", 48))
        await eventually(lambda: driver.store.stats.num_errors > 0)
        real_redis.start()
        await up_to_date(driver, real_redis.url)


async def test_a_large_pool_is_written_in_pieces_while_plans_go_on(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=5001)
        for handle in range(4):
            driver.pool.manager.declare(1000 + handle, family(chr(65 + handle), 16_000))
            driver.pool.manager.admit(1000 + handle)
        driver.pool.manager.ack(1)
        driver.tell()
        assert len(driver.pool.manager.pool.cache) > 10 * PIECE_KEYS
        for handle in range(40):
            driver.prefill(handle, family(chr(97 + handle % 26), 160))
            await asyncio.sleep(0)
        found = await up_to_date(driver, real_redis.url)
        assert len(found.blocks) > 4000


async def test_two_pools_are_written_side_by_side(real_redis: RealRedis):
    async with running(real_redis.url) as first:
        second = Driver(first.store, first.pools, "w2")
        first.open(num_blocks=3001)
        second.open(num_blocks=101)
        for handle in range(20):
            first.prefill(handle, family(chr(65 + handle), 2000))
            second.prefill(handle, family(chr(65 + handle), 48))
            await asyncio.sleep(0.005)
        await up_to_date(first, real_redis.url)
        await up_to_date(second, real_redis.url)
        assert await record(real_redis.url, "w3") is None
