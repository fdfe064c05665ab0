"""Looking prompts up for placement and queue order: batched, over all pools, binding nothing. Scenarios by number."""

from typing import Any

from octavo.columns import pack, unpack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import Service, admit, failure_of

PROMPT = family("A", 40)


async def test_match_tells_what_each_pool_holds_for_each_prompt(service: Service):
    await service.open()
    await service.open("w2")
    await service.run(0, PROMPT, tenant="acme")
    identities = [pb.RequestIdentity(tenant=tenant) for tenant in ("acme", "other")]
    queries = [pb.MatchQuery(token_ids=pack(PROMPT), identity=identity) for identity in identities]
    response = await service.call("Match", queries=queries)
    found = [{match.pool_id: match.num_cached_tokens for match in result.pools} for result in response.results]
    assert found == [{"w1": 32, "w2": 0}, {"w1": 0, "w2": 0}]


async def test_match_says_why_not_more(service: Service):
    await service.open(num_blocks=8)
    await service.run(0, PROMPT, tenant="acme")
    expected: list[tuple[tuple[list[int], dict[str, Any]], pb.MissReason]] = [
        ((PROMPT, {"tenant": "acme"}), pb.MISS_REASON_PARTIAL_BLOCK),
        ((PROMPT, {"tenant": "other"}), pb.MISS_REASON_OTHER_NAMESPACE),
        ((PROMPT, {"tenant": "acme", "cache_salt": "s"}), pb.MISS_REASON_OTHER_NAMESPACE),
        ((family("B", 40), {"tenant": "acme"}), pb.MISS_REASON_COLD),
        ((PROMPT, {"tenant": "acme", "cache_bypass": True}), pb.MISS_REASON_BYPASSED),
    ]
    for (prompt, identity), reason in expected:
        assert (await service.match(prompt, **identity))["w1"].miss_reason == reason
    await service.run(1, family("C", 112), tenant="acme")
    assert (await service.match(PROMPT, tenant="acme"))["w1"].miss_reason == pb.MISS_REASON_EVICTED


async def test_match_without_a_pool_is_an_answer_without_pools(service: Service):
    assert await service.match(PROMPT) == {}
    assert not (await service.call("Match")).results


async def test_prompts_that_are_no_numbers_or_too_long_are_refused(service: Service):
    await service.open()
    bad = [
        pb.MatchQuery(token_ids=b"\x01"),
        pb.MatchQuery(token_ids=bytes(4 * (1 << 20) + 4)),
        pb.MatchQuery(token_ids=pack([1]), identity=pb.RequestIdentity(adapter=pb.Adapter(name="x"))),
        pb.MatchQuery(token_ids=pack([1]), identity=pb.RequestIdentity(trace_context=b"x")),
    ]
    for query in bad:
        good = pb.MatchQuery(token_ids=pack(PROMPT))
        assert (await failure_of(service.call("Match", queries=[good, query]))).reason == "MALFORMED"


async def test_adapters_do_not_share_with_each_other_or_with_none(service: Service):
    await service.open(num_blocks=41)
    first: dict[str, Any] = {"adapter": pb.Adapter(name="poet", content_digest=b"1")}
    second: dict[str, Any] = {"adapter": pb.Adapter(name="poet", content_digest=b"2")}
    await service.run(0, PROMPT, **first)
    assert [await service.cached(PROMPT, **identity) for identity in (first, second, {})] == [[32], [0], [0]]
    assert (await service.run(1, PROMPT, **first)).num_cached_tokens == 32
    assert (await service.run(2, PROMPT, **second)).num_cached_tokens == 0


async def test_scenario_96_a_second_scheduler_sees_what_is_where_and_gets_blocks_of_its_own_worker_only(
    service: Service,
):
    await service.open("w1", num_blocks=11)
    await service.run(0, PROMPT, tenant="acme")
    service.stream = service.stub.PlanStep()  # the second scheduler, whose worker is w2
    await service.open("w2", num_blocks=6, incarnation=77)
    assert await service.cached(PROMPT, tenant="acme") == [32, 0]
    w2 = {"pool_id": "w2", "incarnation": 77}
    (admitted,) = (await service.plan(1, **w2, **admit(0, PROMPT, tenant="acme"))).grants.admissions
    assert (admitted.num_cached_tokens, list(unpack("", admitted.block_ids))) == (0, [1, 2, 3])
    (full,) = (await service.plan(2, **w2, acked_step=1, **admit(1, family("B", 48)))).grants.admissions
    assert full.status == pb.ADMISSION_STATUS_REFUSED  # 3 blocks of w2 in use, 2 left: those of w1 are no help
    figures = {pool.pool_id: pool.figures for pool in (await service.call("GetStats")).pools}
    assert (figures["w1"].num_held, figures["w1"].num_cached, figures["w1"].num_free) == (0, 2, 10)
    assert (figures["w2"].num_held, figures["w2"].num_free) == (3, 2)
    assert await service.cached(PROMPT, tenant="acme") == [32, 32]
    other_incarnation = await service.plan(3, pool_id="w1", incarnation=77)
    assert other_incarnation.refusal.reason == "UNKNOWN_POOL"
