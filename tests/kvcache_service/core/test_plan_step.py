"""One plan: the order of its ops, who gets tokens and blocks, who is preempted. Scenarios: docs/scenarios.md."""

from collections.abc import Iterable

import pytest

from kvcache_service.core.errors import BadPlan
from kvcache_service.core.plan import (
    Admission,
    AdmissionStatus,
    Admits,
    Commits,
    Declaration,
    Frees,
    Grants,
    Grows,
    Plan,
)
from tests.kvcache_service.rig import Rig, family

ADMITTED, REFUSED, NOT_TRIED = AdmissionStatus.ADMITTED, AdmissionStatus.REFUSED, AdmissionStatus.NOT_TRIED


def plan(step: int, **ops: object) -> Plan:
    defaults: dict[str, object] = {"token_budget": 1000, "max_admissions": 100, "acked_step": step - 1}
    return Plan(step=step, **(defaults | ops))  # type: ignore[arg-type]


def declares(*prompts: list[int]) -> list[Declaration]:
    return [Declaration(handle=handle, token_ids=prompt) for handle, prompt in enumerate(prompts)]


def admits(*handles_and_known: tuple[int, int]) -> Admits:
    handles, known = zip(*handles_and_known, strict=True)
    return Admits(handles=handles, num_known_tokens=known, num_watermark_blocks=[0] * len(handles))


def admit_all(*prompts: list[int], step: int = 1, **ops: object) -> Plan:
    rows = [(handle, len(prompt)) for handle, prompt in enumerate(prompts)]
    return plan(step, declares=declares(*prompts), admits=admits(*rows), **ops)


def statuses(admissions: Iterable[Admission]) -> list[AdmissionStatus]:
    return [admission.status for admission in admissions]


def rows(grants: Grants) -> list[tuple[int, int]]:
    """Per grow: tokens granted, new blocks."""
    return list(zip(grants.grow_num_tokens, grants.grow_num_new_blocks, strict=True))


def test_scenario_44_ops_are_applied_in_order_and_a_refused_one_leaves_no_trace():
    rig = Rig(11)
    x, a, b, c = (family(name, 16) for name in "XABC")
    rig.plan(admit_all(x, a, b, c))
    rig.plan(plan(2, grows=Grows(handles=[0], wants=[48])))  # x holds 4 blocks; 10 - 7 are free
    grants = rig.plan(
        plan(
            3,
            frees=Frees(handles=[0], epochs=[0]),  # 7 free
            grows=Grows(handles=[1, 2, 3], wants=[3 * 16, 9 * 16, 2 * 16]),
        )
    )
    assert rows(grants) == [(48, 3), (0, 0), (32, 2)]
    assert list(grants.refused_handles) == [2]
    assert list(grants.preempted_handles) == []
    assert rig.manager.block_table(2) == [3]
    assert len(grants.grow_new_block_ids) == 5
    assert grants.figures.num_free == 2


def test_scenario_44_with_ten_blocks_free_after_freeing():
    rig = Rig(14)  # a, b, c hold one block each; x holds the other ten
    x, a, b, c = family("X", 160), family("A", 16), family("B", 16), family("C", 16)
    rig.plan(admit_all(x, a, b, c))
    grants = rig.plan(
        plan(
            2,
            frees=Frees(handles=[0], epochs=[0]),
            grows=Grows(handles=[1, 2, 3], wants=[3 * 16, 9 * 16, 2 * 16]),
        )
    )
    assert rows(grants) == [(48, 3), (0, 0), (32, 2)]
    assert grants.figures.num_free == 10 - 5


def test_scenario_59_two_identical_prompts_in_one_plan_share_the_blocks_reserved_in_it():
    prompt = family("A", 100)
    grants = Rig(21).plan(admit_all(prompt, prompt))
    assert [admission.num_granted_tokens for admission in grants.admissions] == [100, 4]
    first, second = (admission.block_ids for admission in grants.admissions)
    assert first[:6] == second[:6]
    assert first[6] != second[6]


def test_scenario_52_a_prefill_starts_behind_the_hit_and_is_cut_by_the_budget():
    rig = Rig(21)
    rig.run(9, family("A", 48))
    rig.free(9)
    prompt = family("A", 48) + family("B", 52)
    rig.manager.step = 1
    grants = rig.plan(admit_all(prompt, token_budget=20))
    done = [rig.manager.request(0).num_computed_tokens]
    assert (grants.admissions[0].num_cached_tokens, grants.admissions[0].num_granted_tokens) == (48, 20)
    for step, want in ((2, 32), (3, 12), (4, 1)):
        rig.plan(plan(step, token_budget=20, grows=Grows(handles=[0], wants=[want])))
        done.append(rig.manager.request(0).num_computed_tokens)
    assert done == [68, 88, 100, 101]


def test_scenario_58_new_block_ids_are_sent_only_when_a_block_begins():
    rig = Rig(11)
    new = [list(rig.plan(admit_all(family("A", 30))).admissions[0].block_ids)]
    new += [list(rig.plan(plan(step, grows=Grows(handles=[0]))).grow_new_block_ids) for step in range(2, 6)]
    assert new == [[1, 2], [], [], [3], []]


def test_scenario_65_victims_are_taken_last_first_until_the_grow_fits():
    rig = Rig(9, caching=False, full_sequence_gate=False)
    prompts = family("A", 128), family("B", 32), family("C", 32)
    first = rig.plan(admit_all(*prompts, token_budget=200, long_prefill_token_threshold=64))
    assert [admission.num_granted_tokens for admission in first.admissions] == [64, 32, 32]
    assert first.figures.num_free == 0
    grows = Grows(handles=[0, 1, 2], wants=[64, 1, 1], victims=[2, 1, 0])
    second = rig.plan(plan(2, token_budget=200, grows=grows))
    assert list(second.preempted_handles) == [2, 1]
    assert list(second.grow_num_tokens) == [64, 0, 0]
    assert rig.manager.block_table(0) == [1, 2, 3, 4, 8, 7, 6, 5]


def test_scenario_66_one_victim_serves_two_and_nobody_is_admitted():
    rig = Rig(7, caching=False)
    prompts = family("A", 32), family("B", 32), family("C", 32)
    rig.plan(admit_all(*prompts))
    waiting = Declaration(handle=3, token_ids=family("D", 16))
    grants = rig.plan(
        plan(2, grows=Grows(handles=[0, 1, 2], victims=[2, 1, 0]), declares=[waiting], admits=admits((3, 16)))
    )
    assert list(grants.preempted_handles) == [2]
    assert rows(grants) == [(1, 1), (1, 1), (0, 0)]
    assert list(grants.grow_new_block_ids) == [6, 5]
    assert statuses(grants.admissions) == [NOT_TRIED]
    assert grants.figures.num_free == 0
    again = rig.plan(plan(3, grows=Grows(handles=[0, 1], victims=[1, 0]), admits=admits((2, 33))))
    assert statuses(again.admissions) == [REFUSED]


def test_scenario_67_after_a_preemption_nobody_is_admitted_even_if_blocks_are_left():
    rig = Rig(8, caching=False)
    rig.plan(admit_all(family("A", 32), family("B", 80)))
    small = Declaration(handle=2, token_ids=family("C", 8))
    grants = rig.plan(plan(2, grows=Grows(handles=[0], victims=[1, 0]), declares=[small], admits=admits((2, 8))))
    assert grants.figures.num_free == 4
    assert statuses(grants.admissions) == [NOT_TRIED]


def test_a_victim_that_was_granted_something_gives_tokens_and_blocks_back():
    rig = Rig(5, caching=False)
    rig.plan(admit_all(family("A", 16), family("B", 16)))
    grows = Grows(handles=[1, 0], wants=[32, 20], victims=[1, 0])
    grants = rig.plan(plan(2, token_budget=40, grows=grows, declares=[], acked_step=1))
    assert rows(grants) == [(0, 0), (8, 1)]
    assert list(grants.preempted_handles) == [1]
    assert len(grants.grow_new_block_ids) == 1
    assert rig.manager.block_table(1) == []


def test_the_tokens_of_a_victim_go_to_those_behind_it():
    rig = Rig(6, caching=False)
    rig.plan(admit_all(family("A", 16), family("B", 16), family("C", 15)))
    grows = Grows(handles=[1, 0, 2], wants=[32, 16, 1], victims=[1])
    grants = rig.plan(plan(2, token_budget=48, grows=grows))
    assert list(grants.grow_num_tokens) == [0, 16, 1]


def test_the_running_phase_ends_when_a_request_is_its_own_victim():
    rig = Rig(4, caching=False)
    rig.plan(admit_all(family("A", 16), family("B", 32)))
    grants = rig.plan(plan(2, grows=Grows(handles=[1, 0], victims=[1, 0])))
    assert list(grants.preempted_handles) == [1]
    assert list(grants.grow_num_tokens) == [0, 0]
    assert list(grants.refused_handles) == []


def test_a_refused_grow_without_victims_does_not_stop_later_ones():
    rig = Rig(4, caching=False)
    rig.plan(admit_all(family("A", 32), family("B", 9)))
    grants = rig.plan(plan(2, grows=Grows(handles=[0, 1])))
    assert rows(grants) == [(0, 0), (1, 0)]
    assert list(grants.refused_handles) == [0]


def test_the_budget_is_handed_out_in_order_to_grows_and_then_to_admissions():
    rig = Rig(41)
    rig.plan(admit_all(family("A", 10), family("B", 10)))
    waiting = [Declaration(handle=handle, token_ids=family("CDE"[handle - 2], 20)) for handle in (2, 3, 4)]
    grants = rig.plan(
        plan(
            2,
            token_budget=30,
            grows=Grows(handles=[0, 1], wants=[5, 1]),
            declares=waiting,
            admits=admits((2, 20), (3, 20), (4, 20)),
        )
    )
    assert list(grants.grow_num_tokens) == [5, 1]
    assert [admission.num_granted_tokens for admission in grants.admissions] == [20, 4, 0]
    assert statuses(grants.admissions) == [ADMITTED, ADMITTED, NOT_TRIED]


def test_no_admission_takes_more_than_the_long_prefill_threshold():
    grants = Rig(101).plan(
        admit_all(family("A", 800), family("B", 800), token_budget=1024, long_prefill_token_threshold=400)
    )
    assert [admission.num_granted_tokens for admission in grants.admissions] == [400, 400]


def test_scenario_47_without_chunks_a_prompt_above_the_budget_stops_the_phase():
    prompts = family("A", 800), family("B", 800), family("C", 10)
    grants = Rig(201).plan(admit_all(*prompts, token_budget=1024, whole_prompts_only=True))
    assert statuses(grants.admissions) == [ADMITTED, REFUSED, NOT_TRIED]


def test_a_refused_admission_is_not_overtaken():
    grants = Rig(5).plan(admit_all(family("A", 32), family("B", 64), family("C", 16)))
    assert statuses(grants.admissions) == [ADMITTED, REFUSED, NOT_TRIED]


def test_no_more_admissions_than_asked_for():
    grants = Rig(11).plan(admit_all(family("A", 16), family("B", 16), max_admissions=1))
    assert statuses(grants.admissions) == [ADMITTED, NOT_TRIED]


def test_ids_committed_in_a_plan_are_known_to_its_admissions():
    rig = Rig(11)
    rig.plan(admit_all(family("A", 31)))
    rig.plan(plan(2, grows=Grows(handles=[0])))
    commits = Commits(handles=[0], num_acked_tokens=[32], num_new_tokens=[1], new_token_ids=[77])
    late = Declaration(handle=1, token_ids=[*family("A", 31), 77, 1])
    grants = rig.plan(plan(3, commits=commits, declares=[late], admits=admits((1, 33))))
    assert grants.admissions[0].num_cached_tokens == 32


def test_a_request_may_be_released_forgotten_and_followed_by_another_in_one_plan():
    rig = Rig(3)
    rig.plan(admit_all(family("A", 32)))
    after = Declaration(handle=1, token_ids=family("B", 32))
    grants = rig.plan(
        plan(
            2,
            frees=Frees(handles=[0], epochs=[0]),
            forgotten_handles=[0],
            declares=[after],
            admits=admits((1, 32)),
        )
    )
    assert statuses(grants.admissions) == [ADMITTED]
    assert list(rig.manager.requests) == [1]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"grows": Grows(handles=[9])}, "grow: request 9 holds no blocks"),
        ({"grows": Grows(handles=[1])}, "grow: request 1 holds no blocks"),
        ({"grows": Grows(handles=[0, 0])}, "grow names a request twice"),
        ({"grows": Grows(handles=[0], wants=[1, 2])}, r"columns of grows have \[1, 2\] rows"),
        ({"grows": Grows(handles=[0], wants=[0])}, "wants no tokens"),
        ({"grows": Grows(handles=[0], victims=[5])}, "victims: request 5 holds no blocks"),
        ({"frees": Frees(handles=[0], epochs=[0]), "grows": Grows(handles=[0])}, "grow: request 0 holds no blocks"),
        ({"frees": Frees(handles=[0], epochs=[1])}, "free names epoch 1 of request 0, which is in epoch 0"),
        ({"frees": Frees(handles=[9], epochs=[0])}, "free: request 9 is unknown"),
        ({"forgotten_handles": [0]}, "forget: request 0 still holds blocks"),
        ({"forgotten_handles": [9]}, "forget: request 9 is unknown"),
        ({"declares": declares([1])}, "declare: request 0 was declared before"),
        ({"admits": admits((0, 16))}, "admit: request 0 holds blocks already"),
        ({"admits": admits((9, 16))}, "admit: request 9 is unknown"),
        ({"admits": admits((1, 0))}, "knows no tokens"),
        (
            {"commits": Commits(handles=[0], num_acked_tokens=[99], num_new_tokens=[0])},
            "99 positions .* 16 were planned",
        ),
        ({"commits": Commits(handles=[0], num_acked_tokens=[1], num_new_tokens=[2])}, "name 2 new tokens and carry 0"),
        ({"commits": Commits(handles=[9], num_acked_tokens=[1], num_new_tokens=[0])}, "commit: request 9 is unknown"),
        ({"token_budget": -1}, "token_budget is -1"),
        ({"acked_step": 2}, "plan 2 acknowledges plan 2"),
    ],
)
def test_a_plan_that_contradicts_its_pool_is_refused_with_nothing_changed(ops: dict[str, object], message: str):
    rig = Rig(11)
    rig.plan(admit_all(family("A", 16)))
    rig.manager.declare(1, family("B", 16))
    before = (rig.free_order, rig.manager.figures, rig.manager.take_events())
    sound = {"declares": [Declaration(handle=7, token_ids=[1])], "commits": Commits(), "frees": Frees()}
    with pytest.raises(BadPlan, match=message):
        rig.plan(plan(2, **(sound | ops)))
    assert (rig.free_order, rig.manager.figures, rig.manager.take_events()) == before
    assert list(rig.manager.requests) == [0, 1]
    assert rig.manager.step == 1
