"""Who is served first under each policy, and who gives way."""

import itertools
import random
import statistics
import time

import pytest

from scheduler_service.core.backlog import Queued
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy, order
from scheduler_service.core.request import Entry, Request, Status
from scheduler_service.core.request_queue import RequestQueue
from tests.scheduler_service.core.rig import Rig, a_request, family

AGING = Limits(priority_aging_s=10, preempts_for_slots=True)


def a_queue(policy: Policy, limits: Limits | None = None) -> RequestQueue:
    return RequestQueue(order(policy, limits or Limits()))


def of(tenant: str, name: str, length: int = 10, arrival: float = 0) -> Request:
    return a_request(name, [1] * length, tenant=tenant, arrival=arrival)


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


@pytest.mark.parametrize(("arrival", "first"), [(19, "urgent"), (21, "patient")])
def test_a_class_is_worth_so_many_seconds_of_waiting(arrival: float, first: str) -> None:
    queue = a_queue(Policy.PRIORITY, AGING)
    queue.add(a_request("patient", [1], priority=2, arrival=0))
    queue.add(a_request("urgent", [1], priority=0, arrival=arrival))
    assert names(queue)[0] == first


def test_an_aged_request_keeps_its_place_from_a_higher_class() -> None:
    """Scenario 72 with ageing: only who stands before the other may take its slot."""
    waiting = order(Policy.PRIORITY, AGING)
    patient = a_request("patient", [1], priority=2, arrival=0)
    assert waiting.displaced([patient], a_request("urgent", [1], priority=0, arrival=19)) is patient
    assert waiting.displaced([patient], a_request("late", [1], priority=0, arrival=21)) is None
    assert waiting.displaced([patient], a_request("equal", [1], priority=2, arrival=1)) is None


def test_the_last_in_order_is_displaced() -> None:
    waiting = order(Policy.PRIORITY, AGING)
    running = [a_request(name, [1], priority=priority) for name, priority in [("a", 1), ("b", 3), ("c", 2)]]
    victim = waiting.displaced(running, a_request("head", [1], priority=0))
    assert victim is running[1]
    assert waiting.victims(running) == [running[1], running[2], running[0]]


def test_those_put_back_go_before_their_own_and_lower_classes_but_not_before_higher_ones() -> None:
    """Scenario 73: the stated rule is that of two of one class the one that ran before goes first."""
    queue = a_queue(Policy.PRIORITY, AGING)
    for name, priority, arrival in [("early", 1, 5), ("low", 2, 0), ("high", 0, 21)]:
        queue.add(a_request(name, [1], priority=priority, arrival=arrival))
    queue.put_back([a_request("back", [1], priority=1, arrival=10)])
    assert names(queue) == ["back", "early", "low", "high"]  # by age alone: early 15, back and low 20, high 21


def test_a_higher_class_goes_before_one_that_was_put_back() -> None:
    queue = a_queue(Policy.PRIORITY, AGING)
    queue.add(a_request("high", [1], priority=0, arrival=12))
    queue.put_back([a_request("back", [1], priority=1, arrival=10)])
    assert names(queue) == ["high", "back"]


@pytest.mark.parametrize("policy", [Policy.FCFS, Policy.FAIR])
def test_without_classes_nobody_is_displaced_and_the_last_let_in_loses_its_blocks_first(policy: Policy) -> None:
    waiting = order(policy, AGING)
    running = [a_request(name, [1], priority=9) for name in "abc"]
    assert waiting.displaced(running, a_request("head", [1], priority=0)) is None
    assert waiting.victims(running) == running[::-1]


def test_tenants_of_one_weight_take_turns() -> None:
    queue = a_queue(Policy.FAIR)
    for number, tenant in enumerate("aaaabb"):
        queue.add(of(tenant, f"{tenant}{number}", arrival=number))
    assert names(queue) == ["a0", "b4", "a1", "b5", "a2", "a3"]


def test_what_counts_is_tokens_not_requests() -> None:
    queue = a_queue(Policy.FAIR)
    for number, (tenant, length) in enumerate([("a", 30), ("a", 30), ("b", 10), ("b", 10), ("b", 10), ("b", 10)]):
        queue.add(of(tenant, f"{tenant}{number}", length, arrival=number))
    assert names(queue) == ["a0", "b2", "b3", "b4", "a1", "b5"]


def test_tokens_that_the_cache_is_known_to_hold_cost_nothing() -> None:
    queue = a_queue(Policy.FAIR)
    for number in range(4):
        request = of("ab"[number % 2], f"r{number}", 100, arrival=number)
        request.num_matched_tokens = 90 if request.identity.tenant == "a" else 0
        queue.add(request)
    assert names(queue) == ["r0", "r1", "r2", "r3"]
    queue.add(third := of("a", "r4", 100, arrival=4))
    assert names(queue) == ["r0", "r1", "r2", "r4", "r3"]
    queue.remove(third)


def served_one_at_a_time(rig: Rig, num: int) -> str:
    """Tenants in the order in which they are served, when only one runs at a time."""
    served = ""
    for _ in range(num):
        (request_id,) = rig.step()
        served += request_id[0]
    return served


def one_token_each(rig: Rig, tenant: str, num: int, tag: str = "") -> None:
    for number in range(num):
        rig.submit(f"{tenant}{tag}{number}", family(tenant, 10), max_tokens=1, tenant=tenant, cache_bypass=True)


def test_weights_are_shares() -> None:
    limits = Limits(max_num_seqs=1, tenant_weights={"a": 3, "b": 1})
    rig = Rig(policy=Policy.FAIR, limits=limits, caching=False)
    one_token_each(rig, "a", 12)
    one_token_each(rig, "b", 12)
    served = served_one_at_a_time(rig, 16)
    assert served.count("a") == 12
    for end in range(4, 16, 4):
        assert abs(served[:end].count("a") - 3 * end // 4) <= 1


def test_a_tenant_saves_up_nothing_while_it_has_nothing_to_do() -> None:
    rig = Rig(policy=Policy.FAIR, limits=Limits(max_num_seqs=1), caching=False)
    one_token_each(rig, "a", 10)
    one_token_each(rig, "b", 1)
    assert served_one_at_a_time(rig, 8) == "abaaaaaa"
    one_token_each(rig, "b", 4, "again")
    assert sorted(served_one_at_a_time(rig, 4)) == ["a", "a", "b", "b"]


def test_nor_does_it_pay_for_what_it_got_while_nobody_else_wanted_anything() -> None:
    rig = Rig(policy=Policy.FAIR, limits=Limits(max_num_seqs=1), caching=False)
    one_token_each(rig, "a", 8)
    assert served_one_at_a_time(rig, 8) == "a" * 8
    one_token_each(rig, "a", 4, "more")
    one_token_each(rig, "b", 4)
    assert sorted(served_one_at_a_time(rig, 4)) == ["a", "a", "b", "b"]


def test_outputs_are_paid_for_as_they_come() -> None:
    rig = Rig(policy=Policy.FAIR, limits=Limits(max_num_seqs=1), caching=False)
    rig.submit("a0", family("A", 10), max_tokens=91, tenant="a")
    rig.submit("b0", family("B", 50), max_tokens=1, tenant="b")
    rig.submit("a1", family("A", 10), max_tokens=1, tenant="a")
    rig.submit("b1", family("B", 45), max_tokens=1, tenant="b")
    while rig.requests["a0"].status is not Status.LENGTH:
        rig.step()
    assert served_one_at_a_time(rig, 3) == "bba"


def test_cached_and_recomputed_tokens_are_not_paid_for() -> None:
    rig = Rig(policy=Policy.FAIR)
    fair = rig.core._roster.order
    first = rig.submit("a0", family("A", 64), max_tokens=2, tenant="a")
    rig.step()
    rig.core._roster.release([first])
    rig.run_to_end()
    assert fair._tenants["a"].account == 65  # type: ignore[attr-defined]
    rig.submit("a1", family("A", 64) + family("B", 3), max_tokens=1, tenant="a")
    rig.run_to_end()
    assert fair._tenants["a"].account == 65 + 3  # type: ignore[attr-defined]


def test_what_a_cancelled_request_never_got_is_given_back() -> None:
    rig = Rig(policy=Policy.FAIR, limits=Limits(max_num_batched_tokens=20))
    rig.submit("a0", family("A", 1000), tenant="a")
    rig.submit("b0", family("B", 5), tenant="b")
    for _ in range(3):
        rig.step()
    assert rig.core._roster.order._tenants["a"].account == 1000  # type: ignore[attr-defined]
    rig.core.abort("a0")
    assert rig.core._roster.order._tenants["a"].account == 60  # type: ignore[attr-defined]


def test_under_fair_those_who_lost_their_blocks_go_before_everybody() -> None:
    rig = Rig(policy=Policy.FAIR)
    one_token_each(rig, "b", 2)
    rig.submit("a0", family("A", 500), tenant="a")
    rig.plan()
    rig.core._roster.release([rig.requests["a0"]])
    rig.submit("c0", family("C", 5), tenant="c")
    assert rig.waiting_ids == ["a0", "c0"]


def test_under_fair_those_who_only_waited_on_a_lost_worker_wait_as_before() -> None:
    rig = Rig(policy=Policy.FAIR)
    rig.submit("b0", family("B", 5), tenant="b")
    for number in range(3):
        request = a_request(f"a{number}", family("A", 5), tenant="a", arrival=-number)
        request.was_admitted = number == 2
        rig.core.submit(request, Entry.BACK)
    assert rig.waiting_ids == ["a2", "b0", "a1", "a0"]


def test_accounts_of_tenants_that_have_gone_are_forgotten() -> None:
    rig = Rig(policy=Policy.FAIR, num_blocks=10_000)
    for number in range(3000):
        rig.submit(f"r{number}", family("A", 5), max_tokens=1, tenant=f"t{number}")
        rig.step()
    rig.submit("last", family("A", 5), tenant="t")
    rig.step()
    assert len(rig.core._roster.order._tenants) < 1100  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "ahead"), [(Policy.FCFS, Queued(3, 60)), (Policy.PRIORITY, Queued(2, 30)), (Policy.FAIR, Queued(1, 20))]
)
def test_what_is_served_before_a_newcomer_depends_on_the_policy(policy: Policy, ahead: Queued) -> None:
    queue = a_queue(policy)
    for name, tenant, priority, length in [("a", "x", 0, 10), ("b", "y", 1, 20), ("c", "x", 2, 30)]:
        queue.add(a_request(name, [1] * length, tenant=tenant, priority=priority))
    assert queue.ahead_of(a_request("new", [1], tenant="y", priority=1)) == ahead


@pytest.mark.parametrize("policy", list(Policy))
def test_with_ten_thousand_waiting_no_operation_looks_at_them_all(policy: Policy) -> None:
    """A look at ten thousand requests takes a millisecond; these take some microseconds each."""
    rng, queue = random.Random(1), a_queue(policy)
    waiting = [
        a_request(f"r{number}", [1], tenant=f"t{rng.randrange(500)}", priority=rng.randrange(20), arrival=number)
        for number in range(10_000)
    ]
    for request in waiting:
        queue.add(request)
    taken_us = []
    for number in range(1000):
        request = waiting[rng.randrange(len(waiting))]
        began = time.perf_counter()
        queue.remove(request)
        if number % 2:
            queue.add(request)
        else:
            queue.put_back([request])
        queue.head()
        list(itertools.islice(queue.ready(), 4))
        taken_us.append((time.perf_counter() - began) * 1e6)
    assert statistics.median(taken_us) < 300
