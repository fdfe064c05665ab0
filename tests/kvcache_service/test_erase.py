"""Erasing a tenant's prefixes, with a receipt; and forgetting all prefixes of an idle pool."""

import time
from functools import partial

import grpc
import pytest

from kvcache_service import servicer
from kvcache_service.core.block_hash import namespace_of
from octavo.columns import pack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import Service, admit, admits, failure_of, free, serving

PROMPT = family("A", 40)


async def test_a_tenant_is_forgotten_in_every_pool_and_the_others_are_not(service: Service):
    for pool_id in ("w1", "w2"):
        await service.open(pool_id)
        await service.run(0, PROMPT, pool_id=pool_id, tenant="acme")
        await service.run(1, PROMPT, pool_id=pool_id, tenant="other")
    await service.call(
        "Pin", pin_id="p", token_ids=pack(PROMPT), identity=pb.RequestIdentity(tenant="acme"), ttl={"seconds": 9}
    )
    before_ns = time.time_ns()
    receipt = await service.call("EraseNamespace", tenant="acme")
    assert receipt.namespace == namespace_of("acme", b"key")
    assert (receipt.num_blocks, receipt.num_pins, receipt.num_requests) == (4, 2, 0)
    assert before_ns <= receipt.erased_unix_nanos <= time.time_ns()
    assert await service.cached(PROMPT, tenant="acme") == [0, 0]
    assert await service.cached(PROMPT, tenant="other") == [32, 32]
    assert (await service.run(2, PROMPT, tenant="acme")).num_cached_tokens == 0
    assert (await service.run(3, PROMPT, tenant="acme")).num_cached_tokens == 32  # cached after the call: new data


async def test_a_request_that_runs_goes_on_and_publishes_nothing_more(service: Service):
    await service.open()
    await service.plan(1, **admit(0, PROMPT, tenant="acme"))
    receipt = await service.call("EraseNamespace", tenant="acme")
    assert (receipt.num_blocks, receipt.num_requests) == (0, 1)
    commits = pb.Commits(
        handles=pack([0]), num_acked_tokens=pack([40]), num_new_tokens=pack([1]), new_token_ids=pack([5])
    )
    grow = pb.Grows(handles=pack([0]), wants=pack([9]))
    grown = await service.plan(2, acked_step=1, commits=commits, grows=grow)
    assert grown.grants.figures.num_held == 4
    await service.plan(3, acked_step=2, frees=free(0))
    assert await service.cached(PROMPT, tenant="acme") == [0]
    assert (await service.stats()).figures.num_cached == 0


async def test_a_request_that_waits_starts_from_nothing(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    waiting = admit(1, PROMPT, tenant="acme")
    await service.plan(4, acked_step=3, declares=waiting["declares"])
    await service.call("EraseNamespace", tenant="acme")
    (admitted,) = (await service.plan(5, admits=waiting["admits"])).grants.admissions
    assert admitted.num_cached_tokens == 0


async def test_erasing_again_is_harmless_and_needs_a_tenant(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    counts = [(await service.call("EraseNamespace", tenant="acme")).num_blocks for _ in range(2)]
    assert counts == [2, 0]
    failure = await failure_of(service.call("EraseNamespace"))
    assert (failure.code, failure.reason, failure.field) == (
        grpc.StatusCode.INVALID_ARGUMENT, "BAD_TENANT", "tenant",
    )  # fmt: skip


async def test_the_receipt_says_that_redis_has_not_taken_it_in_time(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    receipt = await service.call("EraseNamespace", tenant="acme")
    assert not receipt.erased_from_metadata
    assert receipt.num_blocks == 2


async def test_steps_go_on_while_an_erasure_waits_for_redis(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servicer, "ERASE_TIMEOUT_S", 600.0)
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    erasing = service.stub.EraseNamespace(pb.EraseNamespaceRequest(tenant="acme"))
    for step in range(4, 24):
        await service.plan(step)
    assert await service.cached(PROMPT, tenant="acme") == [0]
    assert not erasing.done()
    erasing.cancel()


async def test_a_reset_forgets_prefixes_only_when_nobody_uses_the_pool(service: Service):
    await service.open()
    await service.plan(1, **admit(0, PROMPT))
    reset = partial(service.call, "ResetPrefixCache")
    assert not (await reset()).reset
    await service.plan(2, acked_step=1, frees=free(0))
    assert (await reset(pool_id="w1")).reset
    assert (await service.plan(3, admits=admits((0, 40)))).grants.admissions[0].num_cached_tokens == 0
    assert (await failure_of(reset(pool_id="w9"))).reason == "UNKNOWN_POOL"


async def test_the_receipt_says_that_redis_has_taken_it(real_redis: RealRedis):
    async with serving(redis_url=real_redis.url) as service:
        await service.open()
        await service.run(0, PROMPT, tenant="acme")
        await service.run(1, PROMPT)
        receipt = await service.call("EraseNamespace", tenant="acme")
        assert receipt.erased_from_metadata
        assert (receipt.num_blocks, await service.cached(PROMPT)) == (2, [32])
