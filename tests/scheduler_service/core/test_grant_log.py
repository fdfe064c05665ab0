"""What the scheduler remembers of the blocks that plans gave out."""

import pytest

from scheduler_service.core import grant_log
from scheduler_service.core.grant_log import GrantedBlocks, GrantLog, PlanPosition
from scheduler_service.core.plan import Admission, AdmissionStatus, Grants
from tests.scheduler_service.core.rig import Rig, family


def grown(*block_ids: int) -> Grants:
    return Grants(grow_new_block_ids=block_ids)


def remembered(log: GrantLog) -> list[tuple[PlanPosition, list[int]]]:
    return [(granted.position, list(granted.block_ids)) for granted in log.next_opening().granted]


def test_openings_are_counted_whatever_comes_of_them():
    log = GrantLog(block_size=16)
    assert [log.next_opening().number for _ in range(3)] == [1, 2, 3]


def test_new_blocks_of_grows_and_admissions_are_noted_and_hits_are_not():
    log = GrantLog(block_size=16)
    log.next_opening()
    admitted = Admission(status=AdmissionStatus.ADMITTED, num_cached_tokens=32, block_ids=[1, 2, 7, 8])
    refused = Admission(status=AdmissionStatus.REFUSED, num_cached_tokens=16)
    log.note(4, Grants(grow_new_block_ids=[5], admissions=[admitted, refused]))
    log.note(5, Grants())
    assert remembered(log) == [(PlanPosition(1, 4), [5, 7, 8])]


def test_plans_of_a_later_opening_are_later():
    log = GrantLog(block_size=16)
    for block_id in (1, 2):
        log.next_opening()
        log.note(1, grown(block_id))
    assert remembered(log) == [(PlanPosition(1, 1), [1]), (PlanPosition(2, 1), [2])]


def test_nothing_is_forgotten_at_first():
    assert GrantLog(block_size=16).next_opening().granted_after == PlanPosition(0, 0)


@pytest.mark.parametrize(("bound", "value"), [("MAX_PLANS", 2), ("MAX_BLOCKS", 5)])
def test_what_is_forgotten_is_said(monkeypatch: pytest.MonkeyPatch, bound: str, value: int):
    monkeypatch.setattr(grant_log, bound, value)
    log = GrantLog(block_size=16)
    log.next_opening()
    for step in (1, 2, 3):
        log.note(step, grown(2 * step, 2 * step + 1))
    opening = log.next_opening()
    assert opening.granted_after == PlanPosition(1, 1)
    assert [granted.position.step for granted in opening.granted] == [2, 3]


def test_a_plan_larger_than_the_log_leaves_nothing_to_rely_on():
    log = GrantLog(block_size=16)
    log.next_opening()
    log.note(1, grown(*range(grant_log.MAX_BLOCKS + 1)))
    opening = log.next_opening()
    assert (opening.granted_after, list(opening.granted)) == (PlanPosition(1, 1), [])


def test_settled_plans_are_noted_and_abandoned_ones_are_not():
    rig = Rig()
    rig.core.next_opening()
    rig.submit("a", family("A", 40))
    rig.core.schedule()
    rig.core.abandon()
    assert rig.core.next_opening().granted == ()
    rig.run_to_end()
    granted = rig.core.next_opening().granted
    assert next(list(each.block_ids) for each in granted) == [1, 2, 3]
    assert isinstance(granted[0], GrantedBlocks)
