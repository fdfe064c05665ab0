"""What is refused at submit because of those who wait, and deadlines: what cannot be met, and what has passed."""

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import DeadlineUnreachable, QueueFull, Rejected, TenantQueueFull
from scheduler_service.core.request import Entry, Request, Status
from tests.scheduler_service.core.rig import Rig, a_request, family


def a_busy_rig(num_waiting: int, length: int = 40, *, policy: Policy = Policy.FCFS, **limits: object) -> Rig:
    """One runs, and keeps the only place; so many wait."""
    rig = Rig(policy=policy, limits=Limits(max_num_seqs=1, **limits))  # type: ignore[arg-type]
    rig.submit("running", family("R", 10))
    rig.step()
    for number in range(num_waiting):
        rig.submit(f"w{number}", family("W", length), tenant="a")
    return rig


def measured(rig: Rig, *, seconds_each: float = 1.0, tokens_per_s: float = 1000.0) -> Rig:
    """As if one request of ten tokens had been let in every so often, and prompts computed so fast."""
    rig.core.drain.let_in([], num_waiting=1, now_s=0.0)
    for number in range(1, 11):
        gone = a_request("x", [1] * 10)
        rig.core.drain.let_in([gone], num_waiting=1, now_s=number * seconds_each)
        rig.core.drain.step(4000, seconds=4000 / tokens_per_s, budget=4000)
    rig.core.drain.let_in([], num_waiting=0, now_s=10 * seconds_each)
    return rig


def refused(rig: Rig, request: Request, *, now_s: float = 100.0) -> Rejected:
    before = rig.waiting_ids
    with pytest.raises(Rejected) as caught:
        rig.core.submit(request, now_s=now_s)
    assert rig.waiting_ids == before
    return caught.value


def test_a_queue_holds_so_many_requests() -> None:
    rig = measured(a_busy_rig(3, max_queue_len=3))
    full = refused(rig, a_request("new", [1]))
    assert isinstance(full, QueueFull)
    assert full.metadata == {"num_waiting": "3", "max_queue_len": "3"}
    assert full.quota_subject == "requests"
    assert full.retry_after_s == pytest.approx(1.0)


def test_a_queue_holds_so_many_tokens() -> None:
    rig = measured(a_busy_rig(2, 40, max_queued_tokens=100))
    full = refused(rig, a_request("new", [1] * 40))
    assert isinstance(full, QueueFull)
    assert full.metadata == {"queued_tokens": "80", "request_tokens": "40", "max_queued_tokens": "100"}
    assert full.quota_subject == "tokens"
    assert full.retry_after_s == pytest.approx(2.0)  # 20 too many, 10 a second
    assert rig.core.submit(a_request("small", [1] * 20), now_s=100.0)


def test_tokens_that_the_worker_is_known_to_hold_take_no_room() -> None:
    rig = a_busy_rig(2, 40, max_queued_tokens=100)
    request = a_request("new", [1] * 40)
    request.num_matched_tokens = 32
    assert rig.core.submit(request)
    assert rig.core.backlog.total.num_tokens == 88


def test_an_empty_queue_takes_any_one_request() -> None:
    rig = a_busy_rig(0, max_queued_tokens=100)
    assert rig.core.submit(a_request("long", [1] * 400))
    assert isinstance(refused(rig, a_request("next", [1])), QueueFull)


def test_a_tenant_has_a_bound_of_its_own() -> None:
    rig = measured(a_busy_rig(2, max_tenant_queue_len=2))
    full = refused(rig, a_request("new", [1], tenant="a"))
    assert isinstance(full, TenantQueueFull)
    assert full.metadata == {"num_waiting": "2", "max_tenant_queue_len": "2"}
    assert full.quota_subject == "tenant:a"
    assert full.retry_after_s == pytest.approx(1.0)
    assert rig.core.submit(a_request("other", [1], tenant="b"))


def test_places_come_back_when_requests_leave_the_queue_in_any_way() -> None:
    rig = a_busy_rig(2, max_queue_len=2, max_tenant_queue_len=2, max_queued_tokens=90)
    rig.core.abort("w0")
    assert rig.core.submit(a_request("new", [1] * 40, tenant="a"))
    rig.core.abort("running")
    rig.step()
    backlog = rig.core.backlog
    assert (backlog.total.num_requests, backlog.total.num_tokens, backlog.of_tenant("a").num_requests) == (1, 40, 1)


def test_nobody_is_taken_whose_first_token_may_come_later_than_the_bound() -> None:
    rig = measured(a_busy_rig(3, max_queue_wait_s=4.5))  # one a second: the newcomer's turn comes in 4 s
    assert rig.core.submit(a_request("fourth", [1]), now_s=100.0)
    full = refused(rig, a_request("fifth", [1]))
    assert isinstance(full, QueueFull)
    assert full.metadata == {"predicted_ttft_s": "5.001", "max_queue_wait_s": "4.5"}
    assert full.quota_subject == "wait"
    assert full.retry_after_s == pytest.approx(0.501, abs=1e-6)


def test_who_comes_back_as_told_goes_before_those_who_come_for_the_first_time() -> None:
    rig = measured(a_busy_rig(4, max_queue_wait_s=4.5))
    full = refused(rig, a_request("told", [7] * 9))
    assert full.retry_after_s is not None
    rig.core.abort("w0")
    assert isinstance(refused(rig, a_request("new", [8] * 9), now_s=100.4), QueueFull)
    assert rig.core.submit(a_request("again", [7] * 9), now_s=100.0 + full.retry_after_s)


def test_with_a_free_place_and_nobody_waiting_a_prompt_of_any_length_is_taken() -> None:
    rig = measured(a_busy_rig(0, max_queue_wait_s=4.5))
    rig.core.abort("running")
    assert rig.core.submit(a_request("long", family("L", 15_000)), now_s=100.0)


def test_nobody_is_refused_for_the_wait_without_a_bound_or_before_anything_was_measured() -> None:
    assert measured(a_busy_rig(50)).core.submit(a_request("new", [1]), now_s=100.0)
    assert a_busy_rig(50, max_queue_wait_s=4.5).core.submit(a_request("new", [1]), now_s=100.0)


def test_who_was_taken_before_is_not_refused_for_what_will_pass() -> None:
    rig = measured(a_busy_rig(1, max_queue_len=1, max_queue_wait_s=1.0), seconds_each=10)
    assert rig.core.submit(a_request("moved", [1], deadline_s=101.0), Entry.MOVED, now_s=100.0)
    assert rig.core.submit(a_request("back", [1], deadline_s=101.0), Entry.BACK, now_s=100.0)
    assert rig.core.submit(a_request("known", [1], given=[5], deadline_s=101.0), now_s=100.0)


@pytest.mark.parametrize(("remaining_s", "is_taken"), [(3.3, False), (3.5, True)])
def test_a_deadline_that_cannot_be_met_is_refused_with_the_time_it_would_take(
    remaining_s: float, is_taken: bool
) -> None:
    """Three before it, one a second; then its own 400 tokens, a thousand a second."""
    rig = measured(a_busy_rig(3, 10))
    request = a_request("new", family("N", 400), deadline_s=100.0 + remaining_s)
    if is_taken:
        assert rig.core.submit(request, now_s=100.0)
        return
    late = refused(rig, request)
    assert isinstance(late, DeadlineUnreachable)
    assert late.metadata == {"predicted_ttft_s": "3.400", "remaining_s": "3.300"}
    assert late.retry_after_s == pytest.approx(0.1)
    assert "3.400 s" in str(late)


def test_nobody_is_refused_for_a_deadline_before_anything_was_measured() -> None:
    rig = a_busy_rig(100)
    assert rig.core.submit(a_request("new", family("N", 400), deadline_s=100.001), now_s=100.0)


def test_without_a_deadline_nobody_is_too_late() -> None:
    rig = measured(a_busy_rig(100))
    assert rig.core.submit(a_request("new", family("N", 400)), now_s=100.0)


def test_cached_tokens_take_no_time() -> None:
    rig = measured(a_busy_rig(0))
    request = a_request("new", family("N", 400), deadline_s=100.1)
    request.num_matched_tokens = 384
    assert rig.core.submit(request, now_s=100.0)


def test_under_priority_only_those_who_go_first_count() -> None:
    rig = measured(a_busy_rig(0, policy=Policy.PRIORITY))
    for number in range(20):
        rig.submit(f"low{number}", family("L", 10), priority=5)
    assert isinstance(refused(rig, a_request("low", [1], priority=5, deadline_s=105.0)), DeadlineUnreachable)
    assert rig.core.submit(a_request("high", [1], priority=0, deadline_s=105.0), now_s=100.0)


def test_who_waits_too_long_ends_and_is_in_no_plan() -> None:
    rig = a_busy_rig(0)
    late = rig.submit("late", family("L", 10), deadline_s=50.0)
    rig.submit("later", family("M", 10), deadline_s=60.0)
    assert rig.core.expire(49.9) == []
    assert rig.core.expire(50.0) == [late]
    assert (late.status, late.finish_detail) == (Status.ERROR, "DEADLINE_EXCEEDED")
    rig.core.abort("running")
    rig.run_to_end()
    declared = [new.identity.request_id for plan in rig.plans for new in plan.declares]
    assert declared == ["running", "later"]
    assert rig.core.expire(1000.0) == []


def test_one_that_was_preempted_may_run_out_of_time_as_well() -> None:
    rig = Rig()
    request = rig.submit("a", family("A", 10), deadline_s=50.0)
    rig.step()
    assert rig.core.expire(60.0) == []  # it runs: whoever set its timer ends it
    rig.core._roster.release([request])
    assert rig.core.expire(60.0) == [request]
    rig.run_to_end()
    assert rig.kv.figures.num_held == 0


def test_with_more_than_this_pool_holds_a_request_ends_at_once() -> None:
    """It has run elsewhere, on a larger worker; nobody is made to wait until it would be alone."""
    rig = Rig(num_blocks=4)
    rig.submit("other", family("O", 20))
    rig.step()
    big = a_request("big", family("B", 47), given=[1, 2])
    assert not rig.core.submit(big, Entry.BACK)
    assert (big.status, big.finish_detail) == (Status.LENGTH, "kv_capacity")
