"""Reserved when planned, committed when acknowledged: who may find which block when."""

from kvcache_service.core.events import BlocksStored
from kvcache_service.core.plan import Admits, Declaration, Frees, Grows, Plan
from tests.kvcache_service.rig import Rig, family


def plan(step: int, **ops: object) -> Plan:
    return Plan(step=step, token_budget=1000, max_admissions=100, **ops)  # type: ignore[arg-type]


def admit(handle: int, prompt: list[int]) -> dict[str, object]:
    return {
        "declares": [Declaration(handle=handle, token_ids=prompt)],
        "admits": Admits(handles=[handle], num_known_tokens=[len(prompt)], num_watermark_blocks=[0]),
    }


def committed(rig: Rig, prompt: list[int]) -> int:
    """Tokens that everybody may know of."""
    return 16 * len(rig.manager.lookup(prompt, is_committed_only=True))


def test_a_planned_block_is_found_by_later_plans_but_told_to_nobody_until_it_is_acknowledged():
    rig, prompt = Rig(11), family("A", 33)
    rig.plan(plan(1, **admit(0, prompt)))
    assert rig.plan(plan(2, **admit(1, prompt))).admissions[0].num_cached_tokens == 32
    assert (committed(rig, prompt), rig.manager.take_events()) == (0, [])
    rig.plan(plan(3, acked_step=1))
    assert committed(rig, prompt) == 32
    assert [type(event) for event in rig.manager.take_events()] == [BlocksStored]


def test_only_blocks_that_the_granted_tokens_fill_are_reserved():
    rig, prompt = Rig(11), family("A", 64)
    rig.plan(Plan(step=1, token_budget=40, max_admissions=1, **admit(0, prompt)))  # type: ignore[arg-type]
    assert [rig.is_hashed(block_id) for block_id in (1, 2, 3)] == [True, True, False]
    rig.plan(plan(2, grows=Grows(handles=[0], wants=[24])))
    assert [rig.is_hashed(block_id) for block_id in (1, 2, 3, 4)] == [True] * 4


def test_a_block_with_ids_still_to_be_sampled_gets_its_hash_at_commit():
    rig = Rig(11)
    rig.plan(plan(1, **admit(0, family("A", 15))))
    rig.plan(plan(2, acked_step=1, grows=Grows(handles=[0])))
    assert not rig.is_hashed(1)
    rig.manager.ack(2)
    assert not rig.is_hashed(1)
    rig.manager.commit(0, 16, [5])
    assert rig.is_hashed(1)
    assert committed(rig, [*family("A", 15), 5, 6]) == 16


def test_a_known_id_that_no_acknowledged_step_has_written_commits_nothing():
    rig = Rig(11)
    rig.plan(plan(1, **admit(0, family("A", 15))))
    rig.manager.ack(1)
    rig.manager.commit(0, 15, [5])  # sampled by plan 1; its own K/V is written by plan 2
    assert not rig.is_hashed(1)


def test_what_a_freed_request_reserved_is_committed_by_the_acknowledgement():
    rig, prompt = Rig(11), family("A", 33)
    rig.plan(plan(1, **admit(0, prompt)))
    rig.plan(plan(2, frees=Frees(handles=[0], epochs=[0]), forgotten_handles=[0]))
    assert rig.free_order[-2:] == [2, 1]
    rig.plan(plan(3, acked_step=2))
    assert committed(rig, prompt) == 32


def test_a_reservation_dies_when_its_block_is_given_out_again():
    rig = Rig(3)
    rig.plan(plan(1, **admit(0, family("A", 32))))
    rig.plan(plan(2, frees=Frees(handles=[0], epochs=[0]), **admit(1, family("B", 20))))
    rig.plan(plan(3, acked_step=1))
    assert committed(rig, family("A", 33)) == 0
    assert rig.manager.take_events() == []
    rig.plan(plan(4, acked_step=2))
    assert committed(rig, family("B", 20)) == 16


def test_a_live_part_of_a_reservation_is_told_with_its_own_parent():
    rig = Rig(4)
    rig.plan(plan(1, **admit(0, family("A", 48))))
    rig.plan(plan(2, frees=Frees(handles=[0], epochs=[0]), **admit(1, family("B", 10))))  # takes block 3
    rig.plan(plan(3, acked_step=1))
    (stored,) = rig.manager.take_events()
    assert isinstance(stored, BlocksStored)
    assert (stored.block_ids, stored.parent_hash, list(stored.token_ids)) == ((1, 2), None, family("A", 32))


def test_a_fault_withdraws_the_reservations_of_its_plan_and_of_later_ones():
    rig, first, second = Rig(11), family("A", 33), family("B", 33)
    rig.plan(plan(1, **admit(0, first)))
    rig.plan(plan(2, **admit(1, second)))
    rig.plan(plan(3, acked_step=1, frees=Frees(handles=[1], epochs=[0]), failed_step=2))
    assert (rig.hit(first)[1], rig.hit(second)[1]) == (32, 0)
    assert rig.manager.figures.num_cached == 0
    rig.plan(plan(4, acked_step=3))
    assert committed(rig, second) == 0


def test_a_request_that_stays_after_a_fault_publishes_again_when_it_is_acknowledged():
    rig, prompt = Rig(11), family("A", 33)
    rig.plan(plan(1, **admit(0, prompt)))
    rig.manager.fail(1)
    assert rig.hit(prompt)[1] == 0
    rig.manager.commit(0, 33)
    assert committed(rig, prompt) == 32


def test_what_a_victim_reserved_in_the_same_plan_is_withdrawn_before_anybody_looks():
    rig, prompt = Rig(6, full_sequence_gate=False), family("A", 48)
    rig.plan(Plan(step=1, token_budget=16, max_admissions=1, **admit(0, prompt)))  # type: ignore[arg-type]
    rig.plan(plan(2, acked_step=1, **admit(1, family("B", 32))))
    grants = rig.plan(plan(3, acked_step=2, grows=Grows(handles=[0, 1], wants=[32, 1], victims=[0])))
    assert list(grants.preempted_handles) == [0]
    assert rig.hit([*prompt, 1])[1] == 16
    rig.plan(plan(4, acked_step=3))
    assert committed(rig, [*prompt, 1]) == 16


def test_a_commit_of_a_request_that_lost_its_table_only_adds_ids():
    rig = Rig(11)
    rig.plan(plan(1, **admit(0, family("A", 31))))
    rig.plan(plan(2, acked_step=1, frees=Frees(handles=[0], epochs=[0])))
    rig.manager.commit(0, 31, [5, 6])
    assert len(rig.manager.request(0).keys) == 2
    assert committed(rig, [*family("A", 31), 5, 6]) == 16
