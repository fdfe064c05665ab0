"""Public prefixes over the wire: declared, listed, withdrawn, and shared by tenants."""

from typing import Any

import pytest

from octavo.columns import pack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import Service, failure_of

SYSTEM = family("S", 32)


async def put(service: Service, name: str, token_ids: list[int]) -> None:
    await service.call("PutPublicPrefix", prefix=pb.PublicPrefix(name=name, token_ids=pack(token_ids)))


async def listed(service: Service) -> dict[str, bytes]:
    return {prefix.name: prefix.token_ids for prefix in (await service.call("ListPublicPrefixes")).prefixes}


async def test_a_public_prefix_of_one_tenant_serves_the_others_and_what_is_behind_it_does_not(service: Service):
    await service.open(num_blocks=41)
    await put(service, "system", SYSTEM)
    prompt = SYSTEM + family("A", 33)
    assert (await service.run(0, prompt, tenant="acme")).num_cached_tokens == 0
    assert (await service.run(1, prompt, tenant="other")).num_cached_tokens == 32
    assert (await service.run(2, prompt, tenant="other")).num_cached_tokens == 64
    assert (await service.run(3, prompt, tenant="third", cache_salt="s")).num_cached_tokens == 0
    assert await service.cached(prompt, tenant="fourth") == [32]
    assert await service.cached(prompt) == [32]


async def test_public_prefixes_are_listed_by_name_and_may_be_put_and_deleted_again(service: Service):
    await put(service, "b", [1, 2])
    await put(service, "a", [3])
    await put(service, "b", [4])
    await put(service, "b", [4])
    assert list((await listed(service)).items()) == [("a", pack([3])), ("b", pack([4]))]
    assert [(await service.call("DeletePublicPrefix", name="b")).deleted for _ in range(2)] == [True, False]
    assert list(await listed(service)) == ["a"]


async def test_a_request_declared_before_is_not_affected(service: Service):
    await service.open(num_blocks=41)
    prompt = [*SYSTEM, 1]
    await service.run(0, prompt, tenant="acme")
    await put(service, "system", SYSTEM)
    assert await service.cached(prompt, tenant="other") == [0]
    await service.run(1, prompt, tenant="acme")
    await service.call("DeletePublicPrefix", name="system")
    assert await service.cached(prompt, tenant="acme") == [32]
    assert await service.cached(prompt, tenant="other") == [0]


@pytest.mark.parametrize(
    ("prefix", "reason", "field"),
    [
        ({"name": "", "token_ids": pack([1])}, "BAD_PREFIX", "prefix.name"),
        ({"name": "x" * 129, "token_ids": pack([1])}, "BAD_PREFIX", "prefix.name"),
        ({"name": "x"}, "BAD_PREFIX", "prefix.token_ids"),
        ({"name": "x", "token_ids": b"\x01"}, "MALFORMED", None),
    ],
)
async def test_a_prefix_that_cannot_be_is_refused_and_changes_nothing(
    service: Service, prefix: dict[str, Any], reason: str, field: str | None
):
    await put(service, "x", [7])
    failure = await failure_of(service.call("PutPublicPrefix", prefix=pb.PublicPrefix(**prefix)))
    assert (failure.reason, failure.field) == (reason, field)
    assert await listed(service) == {"x": pack([7])}
