"""Steps are taken once each, in order, and none runs that was planned before a failure was known."""

import pytest

from gpu_worker.core.step_sequence import Received, StepSequence, Turn


def received_to(last_seq: int) -> Received:
    received = Received()
    received.last_seq = last_seq
    return received


def answered_to(last_seq: int, *, voiding_seq: int = 0) -> StepSequence:
    sequence = StepSequence()
    for seq in range(1, last_seq + 1):
        sequence.answered(seq, voids_later=seq == voiding_seq)
    return sequence


def test_the_next_step_is_taken() -> None:
    received = received_to(4)
    assert received.turn(5) is Turn.NEXT
    assert received.last_seq == 5


@pytest.mark.parametrize("seq", [1, 4])
def test_a_step_that_comes_again_is_not_taken_again(seq: int) -> None:
    received = received_to(4)
    assert received.turn(seq) is Turn.REPEATED
    assert received.last_seq == 4


@pytest.mark.parametrize("seq", [6, 9])
def test_a_step_whose_predecessor_never_came_is_not_taken(seq: int) -> None:
    received = received_to(4)
    assert received.turn(seq) is Turn.EARLY
    assert received.last_seq == 4


def test_the_next_step_runs() -> None:
    assert answered_to(4).may_run(5, acked_seq=3)


def test_a_failure_voids_the_steps_planned_before_it_was_known() -> None:
    assert not answered_to(5, voiding_seq=5).may_run(6, acked_seq=4)


def test_a_step_planned_after_the_failure_was_known_runs() -> None:
    assert answered_to(6, voiding_seq=5).may_run(7, acked_seq=5)


def test_a_second_failure_voids_anew() -> None:
    sequence = answered_to(5, voiding_seq=5)
    sequence.answered(6, voids_later=True)
    assert not sequence.may_run(7, acked_seq=5)
    assert sequence.may_run(7, acked_seq=6)
