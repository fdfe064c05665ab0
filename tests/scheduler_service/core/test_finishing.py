"""Scenarios 78 to 84 of docs/scenarios.md: stop rules, lengths, and what is in flight when a request ends."""

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.rejection import ContextLengthExceeded, InvalidParameter, KVCapacityExceeded, QueueFull
from scheduler_service.core.request import Status, StopRules
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import Rig, a_request, family

EOS = 2


def a_decoding(rules: StopRules) -> Rig:
    """A request with one output, and room for drafts in its next step."""
    rig = Rig()
    rig.submit("a", [7], rules=rules)
    rig.step()
    rig.requests["a"].offer_drafts([10, 42])
    rig.plan()
    return rig


def test_scenario_78_a_stop_token_ends_the_request_and_what_follows_is_discarded() -> None:
    rig = a_decoding(StopRules(max_tokens=100, stop_token_ids=frozenset({42})))
    update = rig.outcome_of_drafts([10, 42, 12])
    a = rig.requests["a"]
    assert update.outputs[0].token_ids == [10, 42]
    assert (a.status, a.stop_token_id) == (Status.STOPPED, 42)


def test_scenario_78_max_tokens_ends_the_request_and_what_follows_is_discarded() -> None:
    rig = a_decoding(StopRules(max_tokens=3))
    update = rig.outcome_of_drafts([10, 11, 12])
    assert update.outputs[0].token_ids == [10, 11]
    assert rig.requests["a"].status is Status.LENGTH


def test_scenario_78_of_three_first_tokens_two_are_kept() -> None:
    a = a_request("a", [7], max_tokens=2)
    a.place(1, max_model_len=100)
    a.enter(Status.RUNNING)
    assert a.append([10, 11, 12]) == [10, 11]
    assert (a.status, a.output_token_ids) == (Status.LENGTH, [10, 11])


def test_scenario_78_an_ignored_end_of_sequence_is_a_token_like_any_other() -> None:
    rig = a_decoding(StopRules(max_tokens=100, ignore_eos=True, eos_token_ids=frozenset({EOS})))
    update = rig.outcome_of_drafts([EOS, 10, 11])
    assert update.outputs[0].token_ids == [EOS, 10, 11]
    assert rig.requests["a"].status is Status.RUNNING


def test_scenario_79_no_end_of_sequence_before_min_tokens() -> None:
    rig = Rig()
    a = rig.submit("a", [7], rules=StopRules(max_tokens=100, min_tokens=5, eos_token_ids=frozenset({EOS})))
    for number in range(1, 10):
        rig.plan()
        rig.outcome_of_drafts([EOS if number in (3, 9) else 100 + number])
        if number == 3:
            assert a.status is Status.RUNNING
    assert (a.status, a.num_output_tokens) == (Status.STOPPED, 9)


@pytest.mark.parametrize(("length", "num_outputs"), [(30, 2), (31, 1)])
def test_scenario_80_the_context_limit_clamps_max_tokens(length: int, num_outputs: int) -> None:
    rig = Rig(max_model_len=32)
    a = rig.submit("a", family("A", length), max_tokens=100)
    rig.run_to_end()
    assert (a.status, a.num_output_tokens) == (Status.LENGTH, num_outputs)


def test_scenario_80_a_prompt_that_leaves_no_room_is_rejected_with_the_numbers() -> None:
    rig = Rig(max_model_len=32)
    with pytest.raises(ContextLengthExceeded, match="32") as caught:
        rig.submit("a", family("A", 32))
    assert caught.value.metadata["max_allowed"] == "31"
    assert rig.core.num_requests == 0


def test_a_prompt_that_can_never_fit_the_pool_is_rejected_with_the_numbers() -> None:
    rig = Rig(num_blocks=4)
    rig.submit("fits", family("A", 47), max_tokens=1)
    with pytest.raises(KVCapacityExceeded) as caught:
        rig.submit("a", family("B", 48), max_tokens=1)
    assert (caught.value.metadata["needed_blocks"], caught.value.metadata["total_blocks"]) == ("4", "3")


def test_min_tokens_above_what_can_come_is_rejected() -> None:
    rig = Rig(max_model_len=32)
    with pytest.raises(InvalidParameter):
        rig.submit("a", family("A", 30), rules=StopRules(max_tokens=100, min_tokens=3))


def test_a_full_queue_says_when_to_come_back() -> None:
    rig = Rig(limits=Limits(max_queue_len=2))
    rig.submit("a", family("A", 5))
    rig.submit("b", family("B", 5))
    with pytest.raises(QueueFull) as caught:
        rig.submit("c", family("C", 5))
    assert caught.value.retry_after_s is not None


def test_scenario_82_blocks_return_at_once_while_another_request_is_in_flight() -> None:
    rig = Rig(window=2)
    rig.submit("a", family("A", 10), max_tokens=1)
    rig.submit("b", family("B", 10))
    rig.plan()
    rig.plan()
    rig.result()
    rig.plan()
    assert rig.requests["a"].status is Status.LENGTH
    assert rig.core.num_steps_in_flight
    assert rig.kv.figures.num_held == 1


@pytest.mark.parametrize("num_outputs", [1, 2, 3, 5])
def test_scenario_83_nothing_is_planned_beyond_the_last_token(num_outputs: int) -> None:
    rig = Rig(window=2)
    for name in "ab":
        rig.submit(name, family(name.upper(), 10), max_tokens=num_outputs)
    planned = rig.run_to_end()
    assert planned == 2 * (10 + num_outputs - 1)
    for name in "ab":
        assert rig.requests[name].output_token_ids == continuation(family(name.upper(), 10), num_outputs)


def test_scenario_84_in_the_end_everything_is_given_back_and_told_once() -> None:
    rig = Rig()
    for number in range(5):
        rig.submit(f"r{number}", family(chr(65 + number), 10), max_tokens=10)
    rig.run_to_end()
    figures = rig.kv.figures
    assert not rig.kv.requests
    assert [rig.kv.pool.ref_cnt(block_id) for block_id in range(1000)] == [0] * 1000
    assert (figures.num_free, figures.num_cached, figures.num_held) == (999, 5, 0)
    assert rig.finished_ids == ["r0", "r1", "r2", "r3", "r4"]


def test_an_aborted_request_is_in_no_later_plan_and_frees_its_blocks_with_the_next() -> None:
    rig = Rig(window=2)
    rig.submit("a", family("A", 40))
    rig.submit("b", family("B", 40))
    rig.plan()
    rig.core.abort("a")
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert [row.request.request_id for row in settlement.sent.rows] == ["b"]
    assert rig.plans[-1].frees.handles == (1,)
    assert rig.kv.figures.num_held == 3


def test_what_a_gateway_already_has_counts_from_the_start() -> None:
    rig = Rig()
    prompt, answer = family("A", 20), continuation(family("A", 20), 8)
    a = rig.submit("a", prompt, max_tokens=8, given=answer[:5])
    rig.run_to_end()
    assert a.output_token_ids == answer


def test_a_request_that_comes_complete_ends_at_once() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20), max_tokens=3, given=[1, 2, 3])
    assert a.status is Status.LENGTH
    assert rig.plan() is None
