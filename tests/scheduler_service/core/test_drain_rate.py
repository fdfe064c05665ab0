"""What is measured of the queue and of steps, and what is predicted from it. No clock: time is told."""

import pytest

from scheduler_service.core.backlog import Queued
from scheduler_service.core.drain_rate import LIKELY, MAX_RETRY_S, RETRY_AFTER_S, SURE, DrainRate
from scheduler_service.core.outcome import Output
from scheduler_service.core.request import Request
from tests.scheduler_service.core.rig import a_request


def some(num: int, length: int = 100) -> list[Request]:
    return [a_request(f"r{number}", [1] * length) for number in range(num)]


def drained(*, num: int = 2, every_s: float = 0.5, times: int = 10, length: int = 100) -> tuple[DrainRate, float]:
    """A queue that lets in so many so often, and the time."""
    drain, now_s = DrainRate(), 100.0
    drain.let_in([], num_waiting=50, now_s=now_s)
    for _ in range(times):
        now_s += every_s
        drain.let_in(some(num, length), num_waiting=50, now_s=now_s)
    return drain, now_s


def test_requests_per_second_are_those_that_left_while_others_waited() -> None:
    drain, now_s = drained(num=2, every_s=0.5)
    assert drain.requests_per_s(now_s) == pytest.approx(4.0)


def test_a_queue_that_empties_at_once_measures_nothing() -> None:
    drain = DrainRate()
    for second in range(50):
        drain.let_in(some(1), num_waiting=0, now_s=float(second))
    assert drain.requests_per_s(50.0) is None


def test_time_with_an_empty_queue_does_not_count() -> None:
    drain, now_s = drained(num=1, every_s=1.0)
    drain.let_in(some(1), num_waiting=0, now_s=now_s + 1)
    drain.let_in([], num_waiting=5, now_s=now_s + 1000)
    drain.let_in(some(1), num_waiting=4, now_s=now_s + 1001)
    assert drain.requests_per_s(now_s + 1001) == pytest.approx(1.0)


def test_a_queue_that_has_stopped_drains_ever_slower() -> None:
    drain, now_s = drained(num=1, every_s=1.0, times=10)
    assert drain.requests_per_s(now_s + 10) == pytest.approx(0.5)


def test_time_in_which_nothing_could_leave_the_queue_does_not_count() -> None:
    drain, now_s = drained(num=1, every_s=1.0, times=10)
    drain.interrupted()
    assert drain.requests_per_s(now_s + 30) == pytest.approx(1.0)
    drain.let_in([], num_waiting=50, now_s=now_s + 30)
    drain.let_in(some(1), num_waiting=50, now_s=now_s + 31)
    assert drain.requests_per_s(now_s + 31) == pytest.approx(1.0)


def test_requests_that_only_come_back_are_no_progress() -> None:
    drain, now_s = drained(num=1, every_s=1.0, times=10)
    back = some(1)
    back[0].num_preemptions = 1
    drain.let_in(back, num_waiting=50, now_s=now_s + 10)
    assert drain.requests_per_s(now_s + 10) == pytest.approx(0.5)


def test_only_well_filled_steps_say_how_fast_prompts_are_computed() -> None:
    drain = DrainRate()
    for _ in range(10):
        drain.step(1, seconds=0.02, budget=100)
    assert drain.tokens_per_s is None
    drain.step(100, seconds=60.0, budget=100)  # the first, with everything that is done once
    for _ in range(3):
        drain.step(50, seconds=0.1, budget=100)
    assert drain.tokens_per_s == pytest.approx(500.0)


def test_who_is_sent_away_is_told_when_there_is_room() -> None:
    drain, now_s = drained(num=1, every_s=2.0)
    assert drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s) == pytest.approx(2.0)


def test_room_for_tokens_is_measured_in_tokens() -> None:
    drain, now_s = drained(num=1, every_s=1.0, length=100)
    assert drain.retry_after_s(num_requests=0, num_tokens=250, now_s=now_s) == pytest.approx(2.5)


def test_those_who_are_sent_away_one_after_the_other_come_back_one_after_the_other() -> None:
    drain, now_s = drained(num=1, every_s=2.0)
    told = [drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s) for _ in range(3)]
    assert told == pytest.approx([2.0, 4.0, 6.0])
    # ten seconds later all of them could have come
    assert drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s + 10) == pytest.approx(3.0)


def test_nobody_is_sent_away_for_longer_than_a_minute_and_without_measurement_for_a_second() -> None:
    assert DrainRate().retry_after_s(num_requests=1, num_tokens=0, now_s=5.0) == RETRY_AFTER_S
    drain, now_s = drained(num=1, every_s=2.0)
    assert max(drain.retry_after_s(num_requests=1, num_tokens=0, now_s=now_s) for _ in range(100)) == MAX_RETRY_S


def predicted(drain: DrainRate, now_s: float, *, requests: int = 0, tokens: int = 0, running: int = 0) -> float | None:
    return drain.predicted_ttft_s(
        ahead=Queued(requests, tokens), num_running_tokens=running, num_own_tokens=500, now_s=now_s
    )


def test_nothing_is_predicted_before_anything_is_measured() -> None:
    assert predicted(DrainRate(), 0.0, requests=10, tokens=10_000) is None


def test_the_first_token_comes_after_the_queue_and_the_own_prompt() -> None:
    drain, now_s = drained(num=1, every_s=0.5, length=100)
    assert predicted(drain, now_s, requests=4, tokens=400) == pytest.approx(2.0)
    for _ in range(4):
        drain.step(1000, seconds=1.0, budget=1000)
    assert predicted(drain, now_s, requests=4, tokens=400) == pytest.approx(2.5)
    assert predicted(drain, now_s) == pytest.approx(0.5)
    assert predicted(drain, now_s, running=3000) == pytest.approx(3.5)


def test_of_two_measures_of_the_queue_the_shorter_counts() -> None:
    drain, now_s = drained(num=1, every_s=0.5, length=100)
    assert predicted(drain, now_s, requests=4, tokens=10) == pytest.approx(0.05)
    assert predicted(drain, now_s, requests=1, tokens=10_000) == pytest.approx(0.5)


def test_a_wait_leaves_room_for_chance_and_for_what_was_measured_on_few() -> None:
    steady, now_s = drained(num=1, every_s=1.0, times=64)
    gap = steady.gap([], now_s)
    assert gap is not None
    assert (gap.wait_s(0, SURE), gap.wait_s(10, SURE)) == pytest.approx((0.0, 10.0))
    uneven = DrainRate()
    uneven.let_in([], num_waiting=50, now_s=0.0)
    for number in range(32):
        for second in (4 * number + 1, 4 * number + 4):  # after 1 s and after 3 s in turns
            uneven.let_in(some(1), num_waiting=50, now_s=float(second))
    gap = uneven.gap([], 128.0)
    assert gap is not None
    assert (gap.mean_s, gap.deviation_s) == pytest.approx((2.0, 1.0))
    spread_s = (16 * (1 + 16 / 64)) ** 0.5
    assert gap.wait_s(16, LIKELY) == pytest.approx(32.0 + 1.65 * spread_s)
    assert gap.wait_s(16, SURE) == pytest.approx(32.0 + 2.33 * spread_s)


def test_before_anything_has_left_the_queue_those_that_run_are_taken_for_half_done() -> None:
    drain, running = DrainRate(), some(8)
    assert drain.gap(running, 100.0) is None
    drain.let_in(running, num_waiting=0, now_s=100.0)
    gap = drain.gap(running, 102.0)
    assert gap is not None
    assert gap.mean_s == pytest.approx(0.5)  # eight of them, each four seconds
    for request in running:
        request.num_preemptions = 1
    assert drain.gap(running, 102.0) is None


def test_from_being_let_in_to_the_first_token_is_what_nine_in_ten_lately_took() -> None:
    drain = DrainRate()
    assert drain.own_s(500) == 0.0
    for number in range(20):
        (request,) = some(1)
        drain.let_in([request], num_waiting=0, now_s=100.0)
        request.token_ids.append(5)
        drain.brought([Output(request, [5])], now_s=100.0 + (number + 1) / 10)
        request.token_ids.append(5)
        drain.brought([Output(request, [5])], now_s=200.0)  # the second token says nothing
    assert drain.own_s(500) == pytest.approx(1.9)
    for _ in range(4):
        drain.step(100, seconds=1.0, budget=100)
    assert drain.own_s(500) == pytest.approx(5.0)
