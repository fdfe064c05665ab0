"""One life of the service after another, with a real Redis between them."""

import asyncio
import signal
import time

import pytest

from kvcache_service import metadata_record as layout
from kvcache_service import metadata_store
from kvcache_service.core.block_hash import namespace_of
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.restore import GrantedBlocks, Opening, Position, RestoreOutcome
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.recorded import (
    NAMESPACE_KEY,
    SCHEDULER,
    Driver,
    eventually,
    record,
    running,
    up_to_date,
)
from tests.kvcache_service.rig import family

A, B = family("A", 64), family("B", 64)
TENANT = Extras(namespace=namespace_of("t", NAMESPACE_KEY))
KEYS = layout.pool_keys("kvcache", "w1")


def again(*granted: GrantedBlocks, number: int = 2) -> Opening:
    """How the scheduler opens the pool after a restart of the service."""
    return Opening(scheduler_incarnation=SCHEDULER, number=number, granted=granted)


def num_hits(driver: Driver, prompt: list[int], extras: Extras = NO_EXTRAS) -> int:
    return len(driver.pool.manager.lookup([*prompt, 0], extras=extras, is_committed_only=True))


async def test_committed_prefixes_hit_again_and_counting_goes_on(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
        driver.prefill(1, A)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        assert driver.pool.restored.outcome is RestoreOutcome.RESTORED
        assert num_hits(driver, A) == 4
        assert driver.pool.manager.figures.num_hit_tokens == 48
        driver.prefill(2, B)
        found = await up_to_date(driver, real_redis.url)
        assert len(found.blocks) == 8
        assert real_redis.client.hget(KEYS.meta, "kvcache_incarnation") == b"78"


async def test_records_go_on_being_numbered(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
    before = int(real_redis.client.hget(KEYS.meta, "record") or 0)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        await up_to_date(driver, real_redis.url)
    assert int(real_redis.client.hget(KEYS.meta, "record") or 0) == before + 1


async def test_what_later_plans_gave_out_does_not_hit(real_redis: RealRedis):
    """The journal lags behind a Redis that hangs when the service dies."""
    async with running(real_redis.url) as driver:
        driver.open(num_blocks=9)
        driver.prefill(0, A)
        await up_to_date(driver, real_redis.url)
        real_redis.send(signal.SIGSTOP)
        overwritten = driver.prefill(1, family("B", 96))
        granted = GrantedBlocks(Position(1, driver.pool.step - 1), overwritten)
        for task in asyncio.all_tasks():
            if task.get_name() == "metadata-writer":
                task.cancel()  # it dies without another word
    real_redis.send(signal.SIGCONT)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(num_blocks=9, opening=again(granted))
        assert driver.pool.restored.outcome is RestoreOutcome.RESTORED
        left = {1, 2, 3, 4} - set(overwritten)
        assert driver.pool.restored.num_blocks == num_hits(driver, A) == len(left) < 4


async def test_a_tenants_prefixes_come_back_only_under_the_same_namespace_key(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
        driver.prefill(1, B, TENANT)
        driver.pin("p", B, ttl_s=100.0, extras=TENANT)
    async with running(real_redis.url, incarnation=78, namespace_key=b"another", restoring=True) as driver:
        driver.open(opening=again())
        assert driver.pool.restored.num_blocks == num_hits(driver, A) == 4
        assert num_hits(driver, B, TENANT) == len(driver.pool.manager.pins) == 0


async def test_a_pin_comes_back_with_the_rest_of_its_time(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, B, TENANT)
        driver.pin("p", B, ttl_s=100.0, extras=TENANT)
        driver.pin("short", B, ttl_s=0.2, extras=TENANT)
    await asyncio.sleep(0.3)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        assert list(driver.pool.manager.pins) == [PinName(TENANT.namespace, "p")]
        pin = driver.pool.manager.pins.get(PinName(TENANT.namespace, "p"))
        assert pin is not None
        assert 90 < pin.expires_s - time.monotonic() < 100
        assert driver.pool.manager.figures.num_pinned == 3


async def test_public_prefixes_come_back(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.store.public_prefixes_changed({"system": [1, 2, 70_000], "ü": [3]})
    async with running(real_redis.url, incarnation=78) as driver:
        await driver.store.restore(driver.public)
        assert {name: list(ids) for name, ids in driver.public} == {"system": [1, 2, 70_000], "ü": [3]}


async def test_without_an_answer_in_time_pools_begin_with_their_tables(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
    real_redis.send(signal.SIGSTOP)
    try:
        async with running(real_redis.url, incarnation=78) as driver:
            await driver.store.restore(driver.public)
            driver.open(opening=again())
            assert driver.pool.restored.outcome is RestoreOutcome.NO_ANSWER
            assert num_hits(driver, A) == 0
            real_redis.send(signal.SIGCONT)
            found = await up_to_date(driver, real_redis.url)
            assert not found.blocks
    finally:
        real_redis.send(signal.SIGCONT)


async def test_records_that_nobody_claims_are_swept(real_redis: RealRedis, monkeypatch: pytest.MonkeyPatch):
    async with running(real_redis.url) as driver:
        dead = Driver(driver.store, driver.pools, "dead")
        for each in (driver, dead):
            each.open()
            each.prefill(0, A)
    monkeypatch.setattr(metadata_store, "SWEEP_AFTER_S", 0.5)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        await eventually(lambda: not real_redis.client.keys("octavo:kv:{kvcache:dead}:*"))
        assert len(driver.pools.records) == 0
        assert real_redis.client.smembers(layout.directory_key("kvcache")) == {b"w1"}
        await up_to_date(driver, real_redis.url)


async def test_an_erased_tenant_does_not_come_back_from_a_record_that_nobody_has_claimed(real_redis: RealRedis):
    assert TENANT.namespace is not None
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A, TENANT)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.store.erased(TENANT.namespace)
        assert await driver.store.flushed(5.0)
        assert await record(real_redis.url) is None
        driver.open(opening=again())
        assert num_hits(driver, A, TENANT) == 0
    async with running(real_redis.url, incarnation=79, restoring=True) as driver:
        driver.open(opening=again(number=3))
        assert num_hits(driver, A, TENANT) == 0


async def test_an_erasure_that_does_not_know_the_records_drops_them_all(real_redis: RealRedis):
    assert TENANT.namespace is not None
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A, TENANT)
    real_redis.send(signal.SIGSTOP)
    async with running(real_redis.url, incarnation=78) as driver:
        await driver.store.restore(driver.public)
        driver.store.erased(TENANT.namespace)
        assert not await driver.store.flushed(0.1)
        real_redis.send(signal.SIGCONT)
        assert await driver.store.flushed(10.0)
        assert real_redis.client.keys() == []


async def test_a_record_of_another_schema_is_left_alone_until_it_is_swept(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
    real_redis.client.hset(KEYS.meta, "schema", 99)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        assert driver.pool.restored.outcome is RestoreOutcome.NOTHING_RECORDED
        await up_to_date(driver, real_redis.url)


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        (KEYS.blocks, b"short", b"x"),
        (KEYS.blocks, b"k" * 20, b"x"),
        (KEYS.pins, b"n" * 16 + b"\xff", b"v" * 12),
        (KEYS.tenants, b"n" * 16, b"x"),
        (KEYS.meta, b"step", b"abc"),
        (KEYS.meta, b"pool_id", b"\xff"),
        (layout.public_key("kvcache"), b"p", b"abc"),
    ],
)
async def test_what_cannot_be_read_costs_the_prefixes_and_not_the_service(
    real_redis: RealRedis, key: str, field: bytes, value: bytes
):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
        assert await driver.store.flushed(10.0)  # leaving waits for less, which a busy machine may need
    real_redis.client.hset(key, field, value)
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        is_pools = key != layout.public_key("kvcache")
        assert num_hits(driver, A) == (0 if is_pools else 4)
        driver.prefill(1, B)
        assert await driver.store.flushed(10.0)
        await up_to_date(driver, real_redis.url)


async def test_public_prefixes_that_nobody_could_have_declared_do_not_come_back(real_redis: RealRedis):
    real_redis.client.hset(layout.public_key("kvcache"), "empty", b"")
    async with running(real_redis.url) as driver:
        await driver.store.restore(driver.public)
        assert not driver.public


async def test_a_pool_whose_name_is_no_text_is_passed_over(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
    real_redis.client.sadd(layout.directory_key("kvcache"), b"\xff")
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        assert num_hits(driver, A) == 4


async def test_a_record_without_a_field_of_its_own_is_left_out(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
    real_redis.client.hdel(KEYS.meta, "num_blocks")
    async with running(real_redis.url, incarnation=78, restoring=True) as driver:
        driver.open(opening=again())
        assert num_hits(driver, A) == 0


async def test_two_services_share_a_redis_under_different_names(real_redis: RealRedis):
    async with running(real_redis.url) as driver:
        driver.open()
        driver.prefill(0, A)
        await up_to_date(driver, real_redis.url)
        async with metadata_store.MetadataStore.connect(
            real_redis.url, driver.pools, kvcache_incarnation=1, kvcache_id="other"
        ) as other:
            await other.restore(PublicPrefixes())
            assert len(driver.pools.records) == 0
