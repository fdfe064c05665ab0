"""The service over real gRPC: one stream of plans, refusals as answers, mistakes as rich errors."""

import asyncio
from typing import Any

import grpc
import pytest

from octavo import telemetry
from octavo.columns import pack, unpack
from octavo.common.v1.common_pb2 import Fingerprint
from octavo.kvcache.v1 import kvcache_pb2 as pb
from tests.fakes.otlp_receiver import OtlpReceiver
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import FINGERPRINT, INCARNATION, Service, admit, admits, declare, failure_of, serving


async def test_plans_are_answered_in_order_with_what_was_asked(service: Service):
    assert (await service.open()).kvcache_incarnation == INCARNATION
    first = await service.plan(1, **admit(0, family("A", 40)))
    assert (first.pool_id, first.incarnation, first.session, first.step) == ("w1", 5, 1, 1)
    assert first.kvcache_incarnation == INCARNATION
    (admission,) = first.grants.admissions
    assert (admission.status, admission.num_granted_tokens) == (pb.ADMISSION_STATUS_ADMITTED, 40)
    assert list(unpack("block_ids", admission.block_ids)) == [1, 2, 3]
    second = await service.plan(2, acked_step=1, grows=pb.Grows(handles=pack([0]), wants=pack([9])))
    assert list(unpack("", second.grants.grow_num_tokens)) == [9]
    assert list(unpack("", second.grants.grow_num_new_blocks)) == [1]
    assert list(unpack("", second.grants.grow_new_block_ids)) == [4]
    assert (second.grants.figures.num_free, second.grants.figures.num_held) == (16, 4)


async def test_preempted_and_refused_requests_are_named(service: Service):
    await service.open(num_blocks=4)
    prompts = [family("A", 16), family("B", 16), family("C", 16)]
    declares = [declare(handle, prompt) for handle, prompt in enumerate(prompts)]
    await service.plan(1, declares=declares, admits=admits((0, 16), (1, 16), (2, 16)))
    grows = pb.Grows(handles=pack([0, 1, 2]), victims=pack([2]))
    grants = (await service.plan(2, acked_step=1, grows=grows)).grants
    assert list(unpack("", grants.preempted_handles)) == [2]
    assert list(unpack("", grants.refused_handles)) == [1]
    assert list(unpack("", grants.grow_num_tokens)) == [1, 0, 0]


async def test_several_plans_may_be_on_the_way(service: Service):
    await service.open()
    await service.open("w2")
    for step in (1, 2):
        for pool_id in ("w1", "w2"):
            await service.stream.write(pb.PlanStepRequest(pool_id=pool_id, incarnation=5, session=1, step=step))
    answers = [await service.stream.read() for _ in range(4)]
    assert [(answer.pool_id, answer.step) for answer in answers] == [("w1", 1), ("w2", 1), ("w1", 2), ("w2", 2)]
    assert all(answer.HasField("grants") for answer in answers)


async def test_the_same_bytes_get_the_same_answer_over_another_stream_too(service: Service):
    await service.open()
    first = await service.plan(1, **admit(0, family("A", 40)))
    service.stream = service.stub.PlanStep()
    assert await service.plan(1, **admit(0, family("A", 40))) == first
    changed = await service.plan(1, **admit(0, family("B", 40)))
    assert changed.refusal.reason == "CONFLICT"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_id": "w9"}, "UNKNOWN_POOL"),
        ({"session": 9}, "UNKNOWN_POOL"),
        ({"incarnation": 9}, "UNKNOWN_POOL"),
        ({"session": 0}, "STALE_SESSION"),
        ({"step": 2}, "OUT_OF_ORDER"),
        ({"grows": pb.Grows(handles=b"\x01\x00\x00")}, "BAD_PLAN"),
        ({"grows": pb.Grows(handles=pack([7]))}, "BAD_PLAN"),
        ({"commits": pb.Commits(handles=pack([7]))}, "BAD_PLAN"),
        ({"declares": [pb.Declare(token_ids=b"\x01")]}, "BAD_PLAN"),
        ({"declares": [declare(0, [1], trace_context=b"short")]}, "BAD_PLAN"),
        ({"declares": [declare(0, [1], adapter=pb.Adapter(name="without a digest"))]}, "BAD_PLAN"),
        ({"admits": pb.Admits(handles=pack([1, 2]))}, "BAD_PLAN"),
        ({"token_budget": -1}, "BAD_PLAN"),
    ],
)
async def test_a_plan_that_cannot_be_applied_is_refused_and_the_stream_goes_on(
    service: Service, fields: dict[str, Any], reason: str
):
    await service.open()
    fields = dict(fields)
    refused = await service.plan(fields.pop("step", 1), **fields)
    assert refused.refusal.reason == reason
    assert refused.refusal.message
    assert refused.kvcache_incarnation == INCARNATION
    assert (await service.plan(1)).HasField("grants")


async def test_a_worker_with_another_fingerprint_is_refused_naming_the_field(service: Service):
    await service.open()
    other = Fingerprint()
    other.CopyFrom(FINGERPRINT)
    other.kv_dtype = "bfloat16"
    failure = await failure_of(service.open("w2", fingerprint=other))
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "FINGERPRINT_MISMATCH")
    assert failure.metadata == {"field": "kv_dtype"}
    assert "kv_dtype is 'bfloat16'; pool w1 has 'float32'" in failure.message


async def test_an_opening_tells_what_the_service_hashes_under_and_that_nothing_was_lost(service: Service):
    first = await service.open()
    assert first.fingerprint == FINGERPRINT
    assert first.restore_outcome == pb.RESTORE_OUTCOME_NO_ANSWER  # there is no Redis to ask
    again = await service.open(session=2)
    assert (again.restore_outcome, again.num_restored_blocks) == (pb.RESTORE_OUTCOME_NOT_NEEDED, 0)


async def test_a_scheduler_of_another_hash_scheme_is_refused_naming_it(service: Service):
    other = Fingerprint(hash_scheme=2, model_digest=b"m", block_size=16, kv_dtype="float32", kv_layout="nb2hsd")
    failure = await failure_of(service.open(fingerprint=other))
    assert (failure.reason, failure.metadata) == ("FINGERPRINT_MISMATCH", {"field": "hash_scheme"})
    assert "this service hashes by scheme 1" in failure.message


async def test_openings_that_cannot_be_are_refused_with_a_reason(service: Service):
    await service.open(session=2)
    table = pb.DeclaredTable(handle=1, block_ids=pack([99]), num_computed_tokens=1)
    reasons = [
        (await failure_of(call)).reason
        for call in (
            service.open(session=1),
            service.open("w2", tables=[table]),
            service.open("w2", num_blocks=1),
            service.open("w2", tables=[pb.DeclaredTable(block_ids=b"\x01")]),
        )
    ]
    assert reasons == ["STALE_SESSION", "BAD_TABLE", "BAD_POOL", "MALFORMED"]


async def test_a_block_size_that_cannot_be_is_refused_whatever_else_the_opening_says(service: Service):
    prefix = pb.PublicPrefix(name="system", token_ids=pack([1] * 32))
    await service.call("PutPublicPrefix", prefix=prefix)
    table = pb.DeclaredTable(token_ids=pack([1] * 32), identity=pb.RequestIdentity(tenant="acme"))
    for block_size in (0, -16):
        bad = Fingerprint(hash_scheme=1, block_size=block_size)
        assert (await failure_of(service.open(fingerprint=bad, tables=[table]))).reason == "BAD_POOL"


async def test_a_pool_is_opened_with_the_tables_in_use(service: Service):
    table = pb.DeclaredTable(
        handle=3, token_ids=pack(family("A", 40)), block_ids=pack([7, 8, 9]), num_acked_tokens=39,
        num_computed_tokens=40,
    )  # fmt: skip
    opened = await service.open(tables=[table])
    assert opened.figures.num_held == 3
    grants = (await service.plan(1, grows=pb.Grows(handles=pack([3]), wants=pack([9])))).grants
    assert list(unpack("", grants.grow_num_new_blocks)) == [1]
    hit = (await service.plan(2, **admit(4, family("A", 40)))).grants.admissions[0]
    assert (hit.num_cached_tokens, list(unpack("", hit.block_ids))[:2]) == (32, [7, 8])


async def test_tenants_and_salts_do_not_share(service: Service):
    await service.open()
    prompt = family("A", 40)
    identities = [{}, {"tenant": "a"}, {"tenant": "b"}, {"cache_salt": "a"}, {"tenant": "a", "cache_salt": "s"}]
    cached = []
    for step, identity in enumerate(identities * 2, 1):
        answer = await service.plan(
            step,
            acked_step=step - 1,
            frees=pb.Frees(handles=pack([step - 1] if step > 1 else []), epochs=pack([0] if step > 1 else [])),
            **admit(step, prompt, **identity),
        )
        cached.append(answer.grants.admissions[0].num_cached_tokens)
    assert cached == [0] * 5 + [32] * 5


async def test_a_closed_pool_is_over(service: Service):
    await service.open()
    request = pb.ClosePoolRequest(pool_id="w1", incarnation=5)
    assert (await service.stub.ClosePool(request, timeout=5)).closed
    assert not (await service.stub.ClosePool(request, timeout=5)).closed
    assert (await service.plan(1)).refusal.reason == "STALE_SESSION"


async def test_with_caching_off_nothing_is_cached():
    async with serving(caching=False) as service:
        await service.open()
        await service.plan(1, **admit(0, family("A", 40)))
        answer = await service.plan(2, acked_step=1, **admit(1, family("A", 40)))
        assert answer.grants.admissions[0].num_cached_tokens == 0


async def test_an_admission_is_a_span_in_the_trace_of_its_request(service: Service, monkeypatch: pytest.MonkeyPatch):
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
        with telemetry.configured("kvcache"):
            parent = telemetry.start_span("submit")
            context = telemetry.context_to_bytes(parent.get_span_context())
            await service.open(num_blocks=4)
            await service.plan(1, **admit(0, family("A", 33), request_id="r0", trace_context=context))
            refused = admit(1, family("A", 48), request_id="r1", trace_context=context)
            await service.plan(2, acked_step=1, **refused)
            await service.plan(3, acked_step=2, admits=refused["admits"])  # refused again: no second span
            frees = pb.Frees(handles=pack([0]), epochs=pack([0]))
            await service.plan(4, acked_step=3, frees=frees, admits=refused["admits"])
            parent.end()
        spans = await asyncio.to_thread(receiver.wait_for, "kv.plan", "submit")
    plans = sorted((span for span in spans if span.name == "kv.plan"), key=lambda span: span.start_ns)
    submit = receiver.named("submit")
    assert [span.attributes["octavo.admission.result"] for span in plans] == ["admitted", "refused", "admitted"]
    assert {(span.trace_id, span.parent_span_id) for span in plans} == {(submit.trace_id, submit.span_id)}
    cache = {name.rpartition(".")[2]: value for name, value in plans[-1].attributes.items() if ".cache." in name}
    assert cache == {
        "query_tokens": 48, "hit_tokens": 32, "hit_blocks": 2, "block_size": 16, "miss_reason": "partial_block",
        "tier": "device", "evicted_blocks": 0,
    }  # fmt: skip
