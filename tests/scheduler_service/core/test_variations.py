"""Variations of the scenarios of docs/scenarios.md: other sizes, windows and policies, with exact outcomes."""

import random

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import KVCapacityExceeded, Rejected
from scheduler_service.core.request import Status
from tests.scheduler_service.core.rig import Rig, family


@pytest.mark.parametrize("full_sequence_gate", [True, False])
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize(("num_blocks", "num_prompt"), [(2, 15), (3, 31), (3, 1), (11, 159)])
def test_who_runs_alone_ends_when_the_pool_is_full(
    num_blocks: int, num_prompt: int, window: int, full_sequence_gate: bool
):
    """Also where a first chunk would be let in again and again."""
    rig = Rig(num_blocks=num_blocks, window=window, full_sequence_gate=full_sequence_gate)
    request = rig.submit("a", family("A", num_prompt), max_tokens=1000)
    rig.run_to_end()
    assert (request.status, request.finish_detail) == (Status.LENGTH, "kv_capacity")
    assert request.num_known_tokens == 16 * (num_blocks - 1) + 1
    assert (rig.kv.figures.num_free, rig.finished_ids) == (num_blocks - 1, ["a"])


@pytest.mark.parametrize(("num_blocks", "num_prompt"), [(2, 16), (3, 32), (11, 160)])
def test_a_prompt_that_leaves_no_room_for_its_first_token_is_refused(num_blocks: int, num_prompt: int):
    with pytest.raises(KVCapacityExceeded):
        Rig(num_blocks=num_blocks).submit("a", family("A", num_prompt))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("budget", [8192, 7, 1])
def test_exactly_prompt_and_outputs_but_one_are_planned(window: int, max_tokens: int, budget: int):
    rig = Rig(window=window, limits=Limits(max_num_batched_tokens=budget))
    requests = [rig.submit(name, family(name, 10), max_tokens) for name in "AB"]
    assert rig.run_to_end() == 2 * (10 + max_tokens - 1)
    assert [request.num_output_tokens for request in requests] == [max_tokens] * 2


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("num_sampled", [0, 1, 2, 3, 4, 6])
def test_done_goes_back_by_the_drafts_that_were_wrong(num_drafts: int, num_sampled: int):
    num_sampled = min(num_sampled, num_drafts + 1)
    rig = Rig()
    request = rig.submit("a", family("A", 20))
    rig.step()
    request.offer_drafts(range(num_drafts))
    rig.plan()
    assert request.num_computed_tokens == 21 + num_drafts
    rig.outcome_of_drafts([9] * num_sampled)
    assert (request.num_known_tokens, request.num_computed_tokens) == (21 + num_sampled, 20 + num_sampled)
    assert (request.hold, request.num_faults) == (0, int(num_sampled == 0))


@pytest.mark.parametrize(("num_prompt", "second"), [(15, 15), (16, 16), (17, 1), (32, 16), (33, 1), (100, 4)], ids=str)
def test_the_second_of_two_equal_prompts_computes_what_is_behind_full_blocks(num_prompt: int, second: int):
    rig = Rig()
    for name in "ab":
        rig.submit(name, family("A", num_prompt))
    assert rig.step() == {"a": num_prompt, "b": second}


@pytest.mark.parametrize(("arrival", "first"), [(19.5, "new"), (20.5, "old")])
def test_two_classes_are_worth_twice_the_aging_time(arrival: float, first: str):
    rig = Rig(policy=Policy.PRIORITY, limits=Limits(max_num_seqs=1, priority_aging_s=10.0))
    rig.submit("old", family("A", 10), priority=2, arrival=0.0)
    rig.submit("new", family("B", 10), priority=0, arrival=arrival)
    assert rig.step() == {first: 10}


@pytest.mark.parametrize(("weight", "num_of_a"), [(1.0, 6), (2.0, 8), (3.0, 9)])
def test_tenants_are_let_in_by_weight(weight: float, num_of_a: int):
    rig = Rig(policy=Policy.FAIR, limits=Limits(max_num_seqs=1, tenant_weights={"a": weight}))
    for tenant in "ab":
        for number in range(12):
            rig.submit(f"{tenant}{number}", family(tenant, 16), max_tokens=1, tenant=tenant, cache_bypass=True)
    let_in = [name[0] for _ in range(12) for name in rig.step()]
    assert let_in.count("a") == num_of_a


def test_a_token_that_was_in_flight_when_its_request_was_preempted_is_kept_and_moves_no_counter():
    rig = Rig(num_blocks=5, window=2, caching=False)
    a, b = rig.submit("a", family("A", 31)), rig.submit("b", family("B", 31))
    rig.plan()
    rig.plan()
    rig.result()
    settlement = rig.plan()
    assert settlement is not None
    assert (settlement.preempted, b.num_in_flight, b.num_output_tokens) == ([b], 1, 1)
    rig.result()
    assert b.num_output_tokens == 2
    assert (b.epoch, b.hold, b.num_computed_tokens, b.num_acked_tokens) == (1, 0, 0, 0)
    rig.run_to_end()
    assert (a.num_known_tokens, b.num_known_tokens) == (65, 65)


@pytest.mark.parametrize("full_sequence_gate", [True, False])
@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("seed", range(12))
def test_everybody_ends_in_a_small_pool(seed: int, policy: Policy, full_sequence_gate: bool):
    draw = random.Random(seed)
    limits = Limits(
        max_num_batched_tokens=draw.choice([5, 16, 100]),
        max_num_seqs=draw.choice([1, 2, 5]),
        long_prefill_token_threshold=draw.choice([0, 9]),
        preempts_for_slots=draw.random() < 0.5,
    )
    rig = Rig(
        num_blocks=draw.choice([3, 4, 6]),
        window=draw.choice([1, 2]),
        policy=policy,
        full_sequence_gate=full_sequence_gate,
        limits=limits,
    )
    for number in range(6):
        try:
            rig.submit(f"r{number}", family("AB"[number % 2], draw.randint(1, 60)), draw.randint(1, 40))
        except Rejected:
            continue
    rig.run_to_end()
    assert {request.status for request in rig.requests.values()} <= {Status.LENGTH}
    assert sorted(rig.finished_ids) == sorted(rig.requests)
    assert rig.kv.figures.num_free == rig.kv.figures.num_blocks - 1
