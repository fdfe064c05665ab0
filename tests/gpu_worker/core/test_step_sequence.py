"""Steps run once each, in order, and none that was planned before a fault was known."""

from gpu_worker.core.step_sequence import StepSequence, Verdict


def answered_to(last_seq: int, *, fault_seq: int = 0) -> StepSequence:
    sequence = StepSequence()
    for seq in range(1, last_seq + 1):
        sequence.answered(seq, is_fault=seq == fault_seq)
    return sequence


def test_the_next_step_runs() -> None:
    assert answered_to(4).judge(5, acked_seq=3) is Verdict.RUN


def test_a_step_that_comes_again_is_not_answered_again() -> None:
    assert answered_to(4).judge(4, acked_seq=2) is Verdict.REPEATED
    assert answered_to(4).judge(1, acked_seq=0) is Verdict.REPEATED


def test_a_gap_is_a_fault_and_names_what_is_missing() -> None:
    sequence = answered_to(4)
    assert sequence.judge(7, acked_seq=4) is Verdict.FAULT
    assert list(sequence.missing(7)) == [5, 6]


def test_a_fault_voids_the_steps_planned_before_it_was_known() -> None:
    sequence = answered_to(5, fault_seq=5)
    assert sequence.judge(6, acked_seq=4) is Verdict.VOID


def test_a_step_planned_after_the_fault_was_known_runs() -> None:
    sequence = answered_to(6, fault_seq=5)
    assert sequence.judge(7, acked_seq=5) is Verdict.RUN


def test_a_second_fault_voids_anew() -> None:
    sequence = answered_to(5, fault_seq=5)
    sequence.answered(6, is_fault=True)
    assert sequence.judge(7, acked_seq=5) is Verdict.VOID
    assert sequence.judge(7, acked_seq=6) is Verdict.RUN
