"""Pinning prefixes over the wire: kept from eviction for a time, within a quota, never for ever in a request's way."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from octavo.columns import pack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.recorded import eventually
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import Service, admit, failure_of

PROMPT = family("A", 40)


async def pin(
    service: Service, pin_id: str = "p", prompt: list[int] = PROMPT, *, seconds: float = 60, **identity: Any
) -> dict[str, int]:
    ttl = Duration()
    ttl.FromNanoseconds(round(seconds * 1e9))
    response = await service.call(
        "Pin", pin_id=pin_id, token_ids=pack(prompt), ttl=ttl, identity=pb.RequestIdentity(**identity)
    )
    return {kept.pool_id: kept.num_tokens for kept in response.pools}


async def num_pinned(service: Service) -> int:
    return (await service.stats()).figures.num_pinned


async def test_a_pinned_prefix_outlives_what_would_have_evicted_it(service: Service):
    await service.open(num_blocks=21)
    await service.open("w2")
    await service.run(0, PROMPT)
    assert await pin(service) == {"w1": 32}
    await service.run(1, family("B", 288))  # all 18 other blocks
    assert (await service.run(2, PROMPT)).num_cached_tokens == 32


async def test_without_the_pin_it_goes(service: Service):
    await service.open(num_blocks=21)
    await service.run(0, PROMPT)
    assert await pin(service) == {"w1": 32}
    assert (await service.call("Unpin", pin_id="p")).unpinned
    assert not (await service.call("Unpin", pin_id="p")).unpinned
    await service.run(1, family("B", 319))
    assert (await service.run(2, PROMPT)).num_cached_tokens == 0


async def test_a_pin_belongs_to_its_tenant(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    with pytest.raises(grpc.aio.AioRpcError):
        await pin(service, tenant="other")
    assert await pin(service, tenant="acme") == {"w1": 32}
    assert not (await service.call("Unpin", pin_id="p", tenant="other")).unpinned
    assert (await service.call("Unpin", pin_id="p", tenant="acme")).unpinned


async def test_a_pin_ends_when_its_time_is_over_without_anybody_asking(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await pin(service, seconds=0.05)
    assert await num_pinned(service) == 2
    (pool,) = service.pools
    await eventually(lambda: pool.manager.figures.num_pinned == 0)
    assert (await service.stats()).figures.num_cached == 2


async def test_a_later_pin_that_ends_sooner_does_not_wait_for_the_first(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await pin(service, "long", seconds=60)
    await pin(service, "short", PROMPT[:16], seconds=0.05)
    (pool,) = service.pools
    await eventually(lambda: len(pool.manager.pins) == 1)
    assert await num_pinned(service) == 2


async def test_pinning_again_starts_the_time_anew(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await pin(service, seconds=0.2)
    await pin(service, seconds=60)
    await asyncio.sleep(0.25)
    assert await num_pinned(service) == 2


async def test_nothing_cached_is_not_found_and_says_so(service: Service):
    failure = await failure_of(pin(service))
    assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "NOTHING_CACHED")
    await service.open()
    await service.run(0, PROMPT)
    for prompt in (family("B", 40), PROMPT[:15]):
        assert (await failure_of(pin(service, prompt=prompt))).reason == "NOTHING_CACHED"


async def test_a_tenant_has_a_quota_and_is_told_the_numbers(service: Service):
    await service.open(num_blocks=21)  # 20 usable: a tenant's pins keep 5 of them at most
    await service.run(0, family("A", 80), tenant="acme")
    await service.run(1, family("B", 32), tenant="acme")
    assert await pin(service, "a", family("A", 64), tenant="acme") == {"w1": 64}
    failure = await failure_of(pin(service, "b", family("B", 32), tenant="acme"))
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "PIN_QUOTA_EXCEEDED")
    assert failure.metadata["pool_id"] == "w1"
    assert {"6", "5"} <= set(failure.metadata.values())
    assert all(number in failure.message for number in ("6", "5"))
    assert await num_pinned(service) == 4
    assert await pin(service, "b", family("B", 16), tenant="acme") == {"w1": 16}


async def test_a_pin_that_replaces_another_needs_room_for_itself_only(service: Service):
    await service.open(num_blocks=21)
    await service.run(0, family("A", 80))
    await service.run(1, family("B", 80))
    assert await pin(service, "p", family("A", 80)) == {"w1": 80}
    assert await pin(service, "p", family("B", 80)) == {"w1": 80}
    assert await num_pinned(service) == 5


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pin_id": ""}, "pin_id"),
        ({"pin_id": "x" * 129}, "pin_id"),
        ({"prompt": []}, "token_ids"),
        ({"seconds": 0}, "ttl"),
        ({"seconds": -5}, "ttl"),
        ({"seconds": 86400.001}, "ttl"),
    ],
)
async def test_a_pin_that_cannot_be_is_refused_by_its_field_and_changes_nothing(
    service: Service, fields: dict[str, Any], field: str
):
    await service.open()
    await service.run(0, PROMPT)
    failure = await failure_of(pin(service, **fields))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_PIN")
    assert failure.field == field
    assert (await service.stats()).num_pins == 0


async def test_a_pin_without_a_time_or_with_tokens_that_are_no_numbers_is_refused(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    timeless = service.call("Pin", pin_id="p", token_ids=pack(PROMPT))
    assert (await failure_of(timeless)).reason == "BAD_PIN"
    torn = service.call("Pin", pin_id="p", token_ids=b"\x01", ttl=Duration(seconds=1))
    assert (await failure_of(torn)).reason == "MALFORMED"
    endless = service.call("Pin", pin_id="p", token_ids=pack(PROMPT), ttl=Duration(seconds=1, nanos=2**31 - 1))
    assert (await failure_of(endless)).reason == "MALFORMED"
    assert (await service.stats()).num_pins == 0


async def test_pins_give_way_to_a_request_that_could_not_run_otherwise_the_first_to_end_first(service: Service):
    await service.open(num_blocks=21)
    await service.run(0, family("A", 32), tenant="a")
    await service.run(1, family("B", 32), tenant="b")
    await pin(service, "late", family("A", 32), seconds=60, tenant="a")
    await pin(service, "soon", family("B", 32), seconds=30, tenant="b")
    (big,) = (await service.plan(7, acked_step=6, **admit(2, family("C", 288)))).grants.admissions  # 18 blocks
    assert big.status == pb.ADMISSION_STATUS_ADMITTED
    assert (await service.stats()).num_pins == 1
    assert not (await service.call("Unpin", pin_id="soon", tenant="b")).unpinned
    assert (await service.call("Unpin", pin_id="late", tenant="a")).unpinned


async def test_a_pool_with_a_pin_is_not_reset(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await pin(service)
    assert not (await service.call("ResetPrefixCache", pool_id="w1")).reset
    assert await service.cached(PROMPT) == [32]
    await service.call("Unpin", pin_id="p")
    assert (await service.call("ResetPrefixCache", pool_id="w1")).reset
    assert await service.cached(PROMPT) == [0]
