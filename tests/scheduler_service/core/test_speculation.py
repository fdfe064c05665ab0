"""Scenarios 53 to 55 of docs/scenarios.md: drafts are counted, never published; they do not travel on the wire yet."""

from scheduler_service.core.plan import Limits
from scheduler_service.core.request import Status
from tests.scheduler_service.core.rig import Rig, family


def test_scenario_53_drafts_offered_while_a_prefill_is_unfinished_are_dropped() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=50))
    a = rig.submit("a", family("A", 80))
    first = rig.step()
    a.offer_drafts([1, 2, 3])
    assert a.drafts == ()
    second = rig.step()
    a.offer_drafts([1, 2, 3])
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert [first["a"], second["a"], settlement.sent.rows[0].num_tokens] == [50, 30, 4]


def test_scenario_54_accepted_drafts_count_and_rejected_ones_are_taken_back() -> None:
    rig = Rig()
    a = rig.submit("a", [7])
    rig.step()
    a.offer_drafts([1, 2, 3])
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert settlement.sent.rows[0].num_tokens == 4
    assert (a.num_computed_tokens, a.hold) == (5, 4)
    rig.outcome_of_drafts([1, 5])
    figures = rig.core.figures
    assert (a.num_computed_tokens, a.num_known_tokens, a.hold) == (3, 4, 0)
    assert (figures.num_accepted_tokens, figures.num_draft_tokens) == (1, 3)
    assert figures.num_accepted_per_position == [1, 0, 0]


def test_scenario_55_a_step_that_brings_nothing_is_planned_again() -> None:
    rig = Rig()
    a = rig.submit("a", [7])
    rig.step()
    a.offer_drafts([1, 2, 3])
    rig.plan()
    rig.outcome_of_drafts([])
    assert (rig.core.figures.num_accepted_tokens, rig.core.figures.num_accepted_per_position) == (0, [0, 0, 0])
    assert (a.num_computed_tokens, a.num_acked_tokens, a.num_known_tokens, a.hold, a.num_faults) == (1, 1, 2, 0, 1)
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert settlement.sent.rows[0].num_tokens == 1


def test_a_step_that_brings_nothing_three_times_in_a_row_ends_its_request() -> None:
    rig = Rig()
    a = rig.submit("a", [7])
    rig.step()
    for _ in range(3):
        assert not a.is_finished
        rig.plan()
        rig.outcome_of_drafts([])
    assert (a.status, a.finish_detail, rig.finished_ids) == (Status.ERROR, "POISONED", ["a"])
    rig.run_to_end()
    assert rig.kv.figures.num_held == 0
