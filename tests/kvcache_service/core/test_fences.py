"""Blocks that somebody outside the step order still reads. Scenarios are those of docs/scenarios.md."""

from kvcache_service.core.plan import Grants, Grows, Plan
from tests.kvcache_service.rig import Rig, family


def grow(rig: Rig, handle: int, victims: list[int]) -> Grants:
    rig.manager.step += 1
    step = rig.manager.step
    return rig.plan(Plan(step=step, token_budget=100, grows=Grows(handles=[handle], victims=victims)))


def four_that_fill_the_pool() -> Rig:
    """Requests 0 to 3 hold two blocks each: [1, 2], [3, 4], [5, 6], [7, 8]."""
    rig = Rig(9)
    for handle, name in enumerate("ABCD"):
        rig.run(handle, family(name, 32))
    return rig


def test_scenario_76_no_more_victims_are_taken_than_their_fenced_blocks_cover():
    rig = four_that_fill_the_pool()
    rig.manager.fence("reader", [7, 8])
    grants = grow(rig, 0, victims=[3, 2, 1, 0])
    assert (list(grants.preempted_handles), list(grants.refused_handles)) == ([3], [0])
    assert (grants.figures.num_free, grants.figures.num_held, grants.figures.num_fenced) == (0, 6, 2)


def test_scenario_76_what_is_coming_is_waited_for_and_then_given_out():
    rig = four_that_fill_the_pool()
    rig.manager.fence("reader", [7, 8])
    grow(rig, 0, victims=[3, 2, 1, 0])
    again = grow(rig, 0, victims=[2, 1, 0])
    assert (list(again.preempted_handles), list(again.refused_handles)) == ([], [0])
    rig.manager.unfence("reader")
    assert list(grow(rig, 0, victims=[2, 1, 0]).grow_new_block_ids) == [8]


def test_scenario_76_victims_are_taken_until_free_and_coming_blocks_are_enough():
    rig = four_that_fill_the_pool()
    rig.manager.fence("reader", [8])
    rig.manager.step += 1
    grows = Grows(handles=[0], wants=[48], victims=[3, 2, 1, 0])
    grants = rig.plan(Plan(step=rig.manager.step, token_budget=100, grows=grows))
    assert list(grants.preempted_handles) == [3, 2]
    assert list(grants.grow_new_block_ids) == [7, 6, 5]


def test_a_fenced_block_that_nobody_uses_is_neither_free_nor_held_and_never_given_out():
    rig = Rig(4)
    rig.run(0, family("A", 40))
    rig.manager.fence("reader", [3])
    rig.free(0)
    figures = rig.manager.figures
    assert (figures.num_free, figures.num_held, figures.num_fenced, figures.num_cached) == (2, 0, 1, 2)
    assert rig.free_order == [2, 1]
    assert not rig.manager.reset_prefix_cache()


def test_a_fenced_block_can_still_be_hit():
    rig = Rig(6)
    rig.run(0, family("A", 32))
    rig.manager.fence("reader", [1, 2])
    rig.free(0)
    assert rig.hit(family("A", 33)) == ([1, 2], 32)
    assert rig.run(1, family("A", 33)) == [3]
    assert (rig.manager.figures.num_fenced, rig.manager.figures.num_held) == (0, 3)


def test_blocks_become_free_by_the_usual_rule_when_the_last_reader_is_done():
    rig = Rig(6)
    rig.run(0, family("A", 40))
    rig.manager.fence("one", [1, 2, 3])
    rig.manager.fence("other", [3])
    rig.free(0)
    rig.manager.unfence("one")
    assert rig.free_order == [4, 5, 2, 1]  # block 2 is given out before the one that it lies behind
    rig.manager.unfence("other")
    assert rig.free_order == [3, 4, 5, 2, 1]


def test_fencing_again_and_lifting_again_change_nothing():
    rig = Rig(4)
    rig.run(0, family("A", 16))
    for _ in range(2):
        rig.manager.fence("reader", [1])
    rig.free(0)
    for _ in range(2):
        rig.manager.unfence("reader")
    assert rig.free_order == [2, 3, 1]


def test_a_free_block_can_be_fenced_and_is_then_not_free():
    rig = Rig(4)
    rig.run(0, family("A", 16))
    rig.free(0)
    rig.manager.fence("reader", [1])
    assert rig.free_order == [2, 3]
    assert rig.manager.figures.num_cached == 0


def test_a_prefix_counts_as_used_when_a_block_behind_it_is_no_longer_read():
    rig = Rig(6)
    rig.run(0, family("A", 32))
    rig.manager.fence("reader", [2])
    rig.free(0)
    rig.run(1, family("B", 16))
    rig.free(1)
    assert rig.free_order == [4, 5, 1, 3]
    rig.manager.unfence("reader")
    assert rig.free_order == [4, 5, 3, 2, 1]


def test_a_fenced_block_is_forgotten_with_the_prefix_that_it_lies_behind():
    rig = Rig(4)
    rig.run(0, family("A", 32))
    rig.manager.fence("reader", [2])
    rig.free(0)
    rig.run(1, family("B", 32))  # takes blocks 3 and 1
    assert not rig.is_hashed(2)
    assert rig.hit(family("A", 33)) == ([], 0)


def test_a_fenced_block_is_not_told_of_when_only_a_reserved_copy_of_what_it_lies_behind_is_left():
    rig = Rig(6)
    rig.run(0, family("A", 32))  # blocks 1 and 2
    rig.manager.fence("reader", [2])
    rig.free(0)
    rig.declare(1, family("A", 16), is_bypassing_cache=True)
    rig.admit(1)  # reserves a copy of block 1
    rig.declare(2, family("B", 48))
    rig.admit(2)  # takes block 1
    assert rig.pool.cache.copies(rig.manager.prefix_keys(family("A", 16))[0]) == (3,)
    assert rig.manager.lookup(family("A", 33), is_committed_only=True) == []
    assert not rig.is_hashed(2)
