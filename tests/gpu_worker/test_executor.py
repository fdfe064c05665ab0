"""Every step is answered once and in order; a step that fails takes nothing else with it but what was planned on it."""

import pytest
import torch

from gpu_worker.core.step import StepResult, StepStatus
from gpu_worker.executor import StepExecutor
from gpu_worker.model_runner import ModelRunner
from tests.gpu_worker.conftest import MakeRunner
from tests.gpu_worker.steps import new_request, packed, step

OK, FAULT, VOID = StepStatus.OK, StepStatus.FAULT, StepStatus.VOID


def outcomes(*results: StepResult) -> list[tuple[int, StepStatus]]:
    return [(result.seq, result.status) for result in results]


def running(runner: ModelRunner, num_steps: int = 1) -> StepExecutor:
    """Request 1 has run for some steps."""
    executor = StepExecutor(runner)
    first = step(1, {1: 4}, new_requests=(new_request(1, [1, 2, 3, 4], [1, 2]),))
    assert outcomes(executor.execute(first, received_ns=0)) == [(1, OK)]
    for seq in range(2, num_steps + 1):
        executor.execute(step(seq), received_ns=0)
    return executor


def test_steps_give_one_token_a_row(runner: ModelRunner) -> None:
    result = running(runner).execute(step(2), received_ns=0)
    assert (result.status, result.session, result.step) == (OK, 1, 2)
    assert len(result.token_ids) == 1


def test_a_chunk_gives_no_token(runner: ModelRunner) -> None:
    new = new_request(1, [1, 2, 3, 4], [1])
    result = StepExecutor(runner).execute(step(1, {1: 3}, new_requests=(new,)), received_ns=0)
    assert result.token_ids == ()


def test_steps_out_of_order_never_get_here(runner: ModelRunner) -> None:
    executor = running(runner, 3)
    for seq in (3, 5):
        with pytest.raises(AssertionError, match=f"step {seq} was taken after 3"):
            executor.execute(step(seq), received_ns=0)


def test_after_a_fault_what_was_already_sent_is_void_and_what_is_planned_anew_runs(runner: ModelRunner) -> None:
    executor = running(runner)
    bad = step(2, {1: 9}, acked_seq=1)
    sent_before = step(3, {1: 1}, acked_seq=1)
    again = new_request(1, [1, 2, 3, 4, 5], [1, 2], epoch=1)
    planned_after = step(4, {1: 5}, acked_seq=2, new_requests=(again,))
    results = [executor.execute(sent, received_ns=0) for sent in (bad, sent_before, planned_after)]
    assert outcomes(*results) == [(2, FAULT), (3, VOID), (4, OK)]
    assert "moves 9 from 4" in results[0].message


def test_a_step_whose_slots_differ_is_not_run_and_voids_what_was_planned_on_it(runner: ModelRunner) -> None:
    executor, written = running(runner), runner._model._attention._slots[0].clone()  # type: ignore[attr-defined]
    differing = step(2, acked_seq=1, slots_digest=7)
    sent_before = step(3, acked_seq=1)
    again = new_request(1, [1, 2, 3, 4, 5], [1, 2], epoch=1)
    planned_after = step(4, {1: 5}, acked_seq=2, new_requests=(again,))
    results = [executor.execute(sent, received_ns=0) for sent in (differing, sent_before)]
    assert outcomes(*results) == [(2, VOID), (3, VOID)]
    assert results[0].message.startswith("slots differ: step 2 has digest 00000007 over 1 rows")
    assert torch.equal(runner._model._attention._slots[0], written)  # type: ignore[attr-defined]
    assert outcomes(executor.execute(planned_after, received_ns=0)) == [(4, OK)]


def test_a_request_of_a_void_step_must_come_whole(runner: ModelRunner) -> None:
    executor = running(runner)
    executor.execute(step(2, {1: 9}, acked_seq=1), received_ns=0)
    result = executor.execute(step(3, {1: 1}, acked_seq=2), received_ns=0)
    assert result.status is VOID
    assert "must come whole" in result.message


def test_requests_outside_a_fault_go_on(runner: ModelRunner) -> None:
    executor = running(runner)
    executor.execute(step(2, {2: 1}, new_requests=(new_request(2, [7], [5]),)), received_ns=0)
    executor.execute(step(3, {2: 9}, acked_seq=2), received_ns=0)
    result = executor.execute(step(4, {1: 1}, acked_seq=3), received_ns=0)
    assert result.status is OK


def test_a_released_request_is_gone_also_when_the_step_is_void(runner: ModelRunner) -> None:
    executor = running(runner)
    executor.execute(step(2, {9: 1}, acked_seq=1), received_ns=0)
    executor.execute(step(3, {8: 1}, acked_seq=1, released_handles=packed([1])), received_ns=0)
    assert len(runner.state) == 0


def test_a_failure_of_the_model_is_a_fault_of_the_step(make_runner: MakeRunner) -> None:
    runner = make_runner()
    executor = running(runner)
    runner.state.token_ids[0, 4] = 10_000  # as if memory had been corrupted: beyond the embedding
    result = executor.execute(step(2), received_ns=0)
    assert result.status is FAULT
    assert "IndexError" in result.message


def test_reset_keeps_the_numbering_and_renew_starts_over(runner: ModelRunner) -> None:
    executor = running(runner, 3)
    executor.reset()
    new = new_request(1, [1, 2], [1])
    assert outcomes(executor.execute(step(4, {1: 2}, new_requests=(new,)), received_ns=0)) == [(4, OK)]
    executor.renew()
    assert outcomes(executor.execute(step(1, {1: 2}, new_requests=(new,)), received_ns=0)) == [(1, OK)]


def test_the_gap_counts_only_while_the_step_was_there(runner: ModelRunner) -> None:
    executor = running(runner)
    waited = executor.execute(step(2), received_ns=0)
    late = executor.execute(step(3), received_ns=2**62)
    assert waited.timing.gap_us == waited.timing.idle_us > 0
    assert late.timing.gap_us == 0 < late.timing.idle_us
    assert late.timing.forward_us > 0
