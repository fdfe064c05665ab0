"""Messages that become core values whole."""

from array import array

import pytest

from kvcache_service import prefix_wire, wire
from kvcache_service.core.block_hash import namespace_of
from kvcache_service.core.hash_extras import NO_EXTRAS, Adapter
from kvcache_service.core.identities import Identities
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.request import Identity
from kvcache_service.core.restore import Position
from kvcache_service.core.statistics import MissReason
from kvcache_service.core.tenants import Tenants
from octavo.columns import Malformed, pack
from octavo.kvcache.v1 import kvcache_pb2 as pb

IDENTITIES = Identities(Tenants(b"key"), PublicPrefixes({"ones": [1] * 10}))


def test_bytes_that_end_within_a_number_are_refused_by_the_name_of_their_field():
    with pytest.raises(Malformed, match=r"grows\.handles has 5 bytes"):
        wire.plan(pb.PlanStepRequest(step=1, grows=pb.Grows(handles=bytes(5))), IDENTITIES, block_size=4)


def test_every_op_of_a_plan_arrives():
    one = pack([1])
    commits = pb.Commits(handles=one, num_acked_tokens=pack([2]), num_new_tokens=one, new_token_ids=pack([3]))
    waiting = pb.Admits(handles=pack([20]), num_known_tokens=pack([21]), num_watermark_blocks=pack([22]))
    message = pb.PlanStepRequest(
        step=9, acked_step=8, failed_step=7, token_budget=6, max_admissions=5, long_prefill_token_threshold=4,
        whole_prompts_only=True,
        commits=commits,
        frees=pb.Frees(handles=pack([11]), epochs=pack([12])),
        forgotten_handles=pack([13]),
        declares=[pb.Declare(handle=14, epoch=15, token_ids=pack([16]))],
        grows=pb.Grows(handles=pack([17]), wants=pack([18]), victims=pack([19])),
        admits=waiting,
    )  # fmt: skip
    plan = wire.plan(message, IDENTITIES, block_size=4)
    assert (plan.step, plan.acked_step, plan.failed_step, plan.token_budget, plan.max_admissions) == (9, 8, 7, 6, 5)
    assert (plan.long_prefill_token_threshold, plan.whole_prompts_only) == (4, True)
    columns = [
        *(plan.commits.handles, plan.commits.num_acked_tokens, plan.commits.num_new_tokens, plan.commits.new_token_ids),
        *(plan.frees.handles, plan.frees.epochs, plan.forgotten_handles),
        *(plan.grows.handles, plan.grows.wants, plan.grows.victims),
        *(plan.admits.handles, plan.admits.num_known_tokens, plan.admits.num_watermark_blocks),
    ]
    assert [list(column) for column in columns] == [[n] for n in (1, 2, 1, 3, 11, 12, 13, 17, 18, 19, 20, 21, 22)]
    (declared,) = plan.declares
    assert (declared.handle, declared.epoch, list(declared.token_ids)) == (14, 15, [16])


def identity(message: pb.RequestIdentity, prompt: list[int] | None = None) -> Identity:
    return wire.identity(message, IDENTITIES, token_ids=array("I", prompt or []), block_size=4)


def test_a_tenant_becomes_a_namespace_and_goes_no_further():
    known = identity(pb.RequestIdentity(request_id="r", tenant="acme", cache_bypass=True))
    assert known.extras.namespace == namespace_of("acme", b"key")
    assert "acme" not in repr(known)
    assert (known.request_id, known.is_bypassing_cache) == ("r", True)
    assert identity(pb.RequestIdentity()).extras is NO_EXTRAS


def test_the_namespace_begins_behind_the_public_prefix_of_the_prompt():
    tenant = pb.RequestIdentity(tenant="acme")
    assert [identity(tenant, [1] * length).extras.namespace_block for length in (3, 4, 7, 8, 99)] == [0, 1, 1, 2, 2]
    assert identity(pb.RequestIdentity(tenant="acme", cache_salt="s"), [1] * 8).extras.namespace_block == 0


def test_an_adapter_arrives_whole_or_not_at_all():
    named = pb.RequestIdentity(adapter=pb.Adapter(name="poet", content_digest=b"1"))
    assert identity(named).extras.adapter == Adapter(name="poet", content_digest=b"1")
    for half in (pb.Adapter(name="poet"), pb.Adapter(content_digest=b"1"), pb.Adapter()):
        with pytest.raises(Malformed, match="needs a name and the digest of its weights"):
            identity(pb.RequestIdentity(adapter=half))


def test_an_opening_arrives_with_every_grant_that_is_remembered():
    message = pb.OpenPoolRequest(
        scheduler_incarnation=7,
        opening=3,
        granted_after_opening=2,
        granted_after_step=40,
        granted=[pb.GrantedBlocks(opening=2, step=41, block_ids=pack([5, 6]))],
    )
    opening = wire.opening(message)
    assert (opening.scheduler_incarnation, opening.number, opening.granted_after) == (7, 3, Position(2, 40))
    (granted,) = opening.granted
    assert (granted.position, list(granted.block_ids)) == (Position(2, 41), [5, 6])


def test_every_reason_and_every_outcome_has_a_name_on_the_wire():
    assert set(prefix_wire.MISS_REASONS) == set(MissReason)
    assert {pb.MissReason.Name(number) for number in prefix_wire.MISS_REASONS.values()} == {
        f"MISS_REASON_{reason.name}" for reason in MissReason
    }
    assert len(pb.MissReason.values()) == len(MissReason) + 1


def test_a_digest_tells_messages_apart():
    assert wire.digest(pb.PlanStepRequest(step=1)) == wire.digest(pb.PlanStepRequest(step=1))
    assert wire.digest(pb.PlanStepRequest(step=1)) != wire.digest(pb.PlanStepRequest(step=2))
