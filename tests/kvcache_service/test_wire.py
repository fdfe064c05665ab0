"""Messages that become core values whole."""

import pytest

from kvcache_service import wire
from kvcache_service.core.hash_extras import NO_EXTRAS
from octavo.columns import Malformed, pack
from octavo.kvcache.v1 import kvcache_pb2 as pb


def test_bytes_that_end_within_a_number_are_refused_by_the_name_of_their_field():
    with pytest.raises(Malformed, match=r"grows\.handles has 5 bytes"):
        wire.plan(pb.PlanStepRequest(step=1, grows=pb.Grows(handles=bytes(5))), b"")


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
    plan = wire.plan(message, b"")
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


def test_a_tenant_becomes_a_namespace_and_goes_no_further():
    identity = wire.identity(pb.RequestIdentity(request_id="r", tenant="acme", cache_bypass=True), b"key")
    assert identity.extras.namespace is not None
    assert len(identity.extras.namespace) == 16
    assert "acme" not in repr(identity)
    assert (identity.request_id, identity.is_bypassing_cache) == ("r", True)
    assert wire.identity(pb.RequestIdentity(), b"key").extras is NO_EXTRAS


def test_a_digest_tells_messages_apart():
    assert wire.digest(pb.PlanStepRequest(step=1)) == wire.digest(pb.PlanStepRequest(step=1))
    assert wire.digest(pb.PlanStepRequest(step=1)) != wire.digest(pb.PlanStepRequest(step=2))
