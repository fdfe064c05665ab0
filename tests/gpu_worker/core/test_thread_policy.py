"""Threads: all while they help, fewer beside a busy neighbour, all again when it has gone."""

from collections.abc import Callable

import pytest

from gpu_worker.core.thread_policy import (
    FIRST_PAUSE_NS,
    LONGEST_PAUSE_NS,
    MAX_SHORT_TOKENS,
    WINDOW_STEPS,
    StepThreads,
    ThreadPolicy,
)

STEP_NS = 2_000_000


def run(
    policy: ThreadPolicy, wait_share: Callable[[int], float], *, busy_s: float, step_ns: int = STEP_NS
) -> list[int]:
    """Steps for so many seconds of computing; which number of threads each had."""
    numbers = []
    for _ in range(round(busy_s * 1e9 / step_ns)):
        numbers.append(policy.num_threads)
        policy.observe(busy_ns=step_ns, wait_ns=int(step_ns * wait_share(policy.num_threads)))
    return numbers


def alone(_: int) -> float:
    return 0.1


def beside_one_busy_process(cores: int) -> Callable[[int], float]:
    """The neighbour holds up one thread as soon as there are as many as cores."""
    return lambda num_threads: 0.6 if num_threads == cores else 0.05


def test_all_threads_work_while_they_hardly_wait():
    assert set(run(ThreadPolicy(2), alone, busy_s=5)) == {2}


def test_one_late_step_changes_nothing():
    policy = ThreadPolicy(2)
    for step in range(50):
        policy.observe(busy_ns=STEP_NS, wait_ns=STEP_NS * 9 // 10 if step % WINDOW_STEPS == 0 else 0)
    assert policy.num_threads == 2


def test_beside_a_busy_process_the_late_thread_is_left_out_within_a_few_steps():
    policy = ThreadPolicy(2)
    numbers = run(policy, beside_one_busy_process(2), busy_s=0.1)
    assert numbers.index(1) == WINDOW_STEPS
    assert set(numbers[WINDOW_STEPS:]) == {1}


def test_with_many_threads_only_those_that_are_late_are_left_out():
    policy = ThreadPolicy(16)
    numbers = run(policy, lambda num_threads: 0.5 if num_threads > 13 else 0.1, busy_s=0.3)
    assert numbers[-1] == 13


def test_the_last_thread_always_stays():
    assert run(ThreadPolicy(2), lambda _: 1.0, busy_s=0.2)[-1] == 1


def test_more_threads_are_tried_again_and_stay_when_the_neighbour_has_gone():
    policy = ThreadPolicy(4)
    run(policy, lambda num_threads: 0.6 if num_threads > 1 else 0.0, busy_s=0.4)
    assert policy.num_threads == 1
    numbers = run(policy, alone, busy_s=3 * FIRST_PAUSE_NS / 1e9 + 1)
    assert numbers[-1] == 4


def test_tries_that_fail_become_rare():
    policy = ThreadPolicy(2)
    held_up = beside_one_busy_process(2)
    first = run(policy, held_up, busy_s=10).count(2)
    later = [run(policy, held_up, busy_s=10) for _ in range(6)][-1].count(2)
    assert later < first / 2
    assert run(policy, held_up, busy_s=2 * LONGEST_PAUSE_NS / 1e9).count(2) > 0, "it must not stop trying"


@pytest.mark.parametrize("step_ns", [STEP_NS, 50_000_000, 100_000_000, 200_000_000])
def test_tries_that_fail_are_rare_however_long_a_step_takes(step_ns: int):
    policy = ThreadPolicy(2)
    numbers = run(policy, beside_one_busy_process(2), busy_s=200, step_ns=step_ns)
    assert numbers.count(2) < len(numbers) / 7


def test_a_neighbour_that_comes_back_after_long_finds_quick_tries_again():
    policy = ThreadPolicy(2)
    run(policy, beside_one_busy_process(2), busy_s=60)
    run(policy, alone, busy_s=40)
    assert policy.num_threads == 2
    run(policy, beside_one_busy_process(2), busy_s=0.1)
    assert policy.num_threads == 1
    assert 2 in run(policy, alone, busy_s=FIRST_PAUSE_NS / 1e9 + 0.1)


def test_short_steps_give_a_thread_up_sooner_than_long_ones():
    threads = StepThreads(2)
    for num_tokens in (1, 100):
        run(threads.of_step(num_tokens), lambda num_threads: 0.3 if num_threads == 2 else 0.0, busy_s=0.1)
    assert (threads.of_step(1).num_threads, threads.of_step(100).num_threads) == (1, 2)


def test_chunks_of_prompts_keep_the_threads_that_single_tokens_gave_up():
    threads = StepThreads(2)
    run(threads.of_step(1), beside_one_busy_process(2), busy_s=0.1)
    assert threads.of_step(MAX_SHORT_TOKENS).num_threads == 1
    assert threads.of_step(MAX_SHORT_TOKENS + 1).num_threads == 2
