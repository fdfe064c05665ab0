"""One life of the service after another, over one Redis: what a tenant, an operator and a watcher find again."""

import asyncio
import signal
from typing import Any

import pytest

from octavo.columns import pack, unpack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import INCARNATION, Service, serving
from tests.kvcache_service.test_watch import findable, kind_of

PROMPT = family("A", 48)
SCHEDULER: dict[str, Any] = {"scheduler_incarnation": 9, "opening": 1, "num_blocks": 41}


async def opened_again(service: Service) -> pb.OpenPoolResponse:
    """By the same scheduler, which has given out nothing since plan 9 of its first opening."""
    return await service.open(
        session=2, **SCHEDULER | {"opening": 2, "granted_after_opening": 1, "granted_after_step": 0}
    )


async def written(service: Service) -> None:
    assert await service.store.flushed(5)


async def put(service: Service, name: str, token_id: int) -> None:
    await service.call("PutPublicPrefix", prefix=pb.PublicPrefix(name=name, token_ids=pack([token_id])))


async def public(service: Service) -> dict[str, int]:
    """The only token of each public prefix."""
    prefixes = (await service.call("ListPublicPrefixes")).prefixes
    return {prefix.name: unpack("token_ids", prefix.token_ids)[0] for prefix in prefixes}


async def test_prefixes_come_back_and_a_watcher_starts_anew_with_them(real_redis: RealRedis):
    async with serving(redis_url=real_redis.url) as first:
        await first.open(**SCHEDULER)
        await first.run(0, PROMPT, tenant="acme")
        await written(first)
        cached = findable(first)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        call = second.stub.Watch(pb.WatchRequest(kvcache_incarnation=INCARNATION, after_event_num=2))
        restarted = await call.read()
        assert restarted.events[0].restart.reason == "OTHER_INCARNATION"
        assert kind_of((await call.read()).events[0]) == "caught_up"  # no pool is open yet
        opened = await opened_again(second)
        assert (opened.restore_outcome, opened.num_restored_blocks) == (pb.RESTORE_OUTCOME_RESTORED, 3)
        events = list((await call.read()).events)
        assert kind_of(events[0]) == "cleared"
        assert [event.event_num for event in events] == list(range(1, len(events) + 1))
        told = b"".join(event.stored.block_hashes for event in events[1:])
        assert {("w1", told[at : at + 16]) for at in range(0, len(told), 16)} == cached == findable(second)
        assert await second.cached(PROMPT, tenant="acme") == [32]


async def test_an_erased_tenant_does_not_come_back(real_redis: RealRedis):
    async with serving(redis_url=real_redis.url) as first:
        await first.open(**SCHEDULER)
        await first.run(0, PROMPT, tenant="acme")
        await first.run(1, PROMPT, tenant="other")
        await written(first)
        assert (await first.call("EraseNamespace", tenant="acme")).erased_from_metadata
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        await opened_again(second)
        assert await second.cached([*PROMPT, 1], tenant="acme") == [0]
        assert await second.cached([*PROMPT, 1], tenant="other") == [48]


async def test_a_tenant_erased_before_its_pool_is_opened_again_does_not_come_back(real_redis: RealRedis):
    async with serving(redis_url=real_redis.url) as first:
        await first.open(**SCHEDULER)
        await first.run(0, PROMPT, tenant="acme")
        await written(first)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        assert (await second.call("EraseNamespace", tenant="acme")).erased_from_metadata
        await opened_again(second)
        assert await second.cached([*PROMPT, 1], tenant="acme") == [0]


async def test_public_prefixes_come_back(real_redis: RealRedis):
    prefix = pb.PublicPrefix(name="system", token_ids=pack(PROMPT))
    async with serving(redis_url=real_redis.url) as first:
        await first.call("PutPublicPrefix", prefix=prefix)
        await first.call("PutPublicPrefix", prefix=pb.PublicPrefix(name="gone", token_ids=pack([1])))
        await first.call("DeletePublicPrefix", name="gone")
        await written(first)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        assert list((await second.call("ListPublicPrefixes")).prefixes) == [prefix]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_redis_that_is_away_at_the_start_costs_no_public_prefix(real_redis: RealRedis, is_killed: bool):
    async with serving(redis_url=real_redis.url) as first:
        for name in ("kept", "replaced", "deleted"):
            await put(first, name, 1)
        await written(first)
    real_redis.kill() if is_killed else real_redis.send(signal.SIGSTOP)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        assert await public(second) == {}
        await put(second, "new", 2)
        await put(second, "replaced", 2)
        await second.call("DeletePublicPrefix", name="deleted")
        await asyncio.to_thread(real_redis.start) if is_killed else real_redis.send(signal.SIGCONT)
        await written(second)
        assert await public(second) == {"kept": 1, "new": 2, "replaced": 2}
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 2) as third:
        assert await public(third) == {"kept": 1, "new": 2, "replaced": 2}


async def test_a_redis_that_was_away_at_the_start_tells_its_public_prefixes_to_a_service_that_writes_none(
    real_redis: RealRedis,
):
    async with serving(redis_url=real_redis.url) as first:
        await put(first, "kept", 1)
        await written(first)
    real_redis.send(signal.SIGSTOP)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        real_redis.send(signal.SIGCONT)
        async with asyncio.timeout(5):
            while await public(second) != {"kept": 1}:  # noqa: ASYNC110 - the service tells nobody
                await asyncio.sleep(0.01)


async def test_a_redis_that_lost_everything_is_told_the_public_prefixes_again(real_redis: RealRedis):
    async with serving(redis_url=real_redis.url) as first:
        await first.open(**SCHEDULER)
        await put(first, "system", 1)
        await written(first)
        real_redis.client.flushall()
        real_redis.kill()
        await asyncio.to_thread(real_redis.start)
        await first.run(0, PROMPT)
        await written(first)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        assert await public(second) == {"system": 1}


async def test_pins_come_back_with_what_is_left_of_their_time(real_redis: RealRedis):
    pin: dict[str, Any] = {"token_ids": pack(PROMPT), "identity": pb.RequestIdentity(tenant="acme")}
    async with serving(redis_url=real_redis.url) as first:
        await first.open(**SCHEDULER)
        await first.run(0, PROMPT, tenant="acme")
        await first.call("Pin", pin_id="long", ttl={"seconds": 60}, **pin)
        await first.call("Pin", pin_id="short", ttl={"nanos": 1}, **pin)
        await written(first)
    async with serving(redis_url=real_redis.url, incarnation=INCARNATION + 1) as second:
        await opened_again(second)
        stats = await second.stats(include_tenants=True)
        assert (stats.num_pins, stats.figures.num_pinned) == (1, 3)
        (used,) = stats.tenants
        assert used.tenant.startswith("namespace:")  # nobody has said the name in this life
        assert (await second.call("Unpin", pin_id="long", tenant="acme")).unpinned
        assert [used.tenant for used in (await second.stats(include_tenants=True)).tenants] == ["acme"]
