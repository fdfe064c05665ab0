"""Opening a pool again: the declared tables are the only ones, and only what they prove is named."""

from dataclasses import replace

import pytest

from kvcache_service.core.errors import BadTable
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.plan import DeclaredTable
from kvcache_service.core.request import Identity
from tests.kvcache_service.rig import Rig, family


def table(
    handle: int, token_ids: list[int], block_ids: list[int], *, acked: int, computed: int | None = None
) -> DeclaredTable:
    return DeclaredTable(
        handle=handle,
        token_ids=token_ids,
        block_ids=block_ids,
        num_acked_tokens=acked,
        num_computed_tokens=acked if computed is None else computed,
    )


def test_a_new_pool_takes_the_tables_and_names_their_acknowledged_full_blocks():
    rig = Rig(11)
    rig.manager.adopt([table(7, family("A", 50), [4, 2, 9, 3], acked=40, computed=50)])
    assert rig.manager.block_table(7) == [4, 2, 9, 3]
    assert [rig.is_hashed(block_id) for block_id in (4, 2, 9, 3)] == [True, True, False, False]
    assert rig.free_order == [1, 5, 6, 7, 8, 10]
    assert rig.hit(family("A", 50)) == ([4, 2], 32)


def test_the_next_grow_starts_where_the_sent_steps_end():
    rig = Rig(11)
    rig.manager.adopt([table(0, family("A", 30), [1, 2], acked=30, computed=32)])
    assert rig.manager.grow(0, 1).new_block_ids == [3]


def test_blocks_written_by_steps_in_flight_are_named_by_a_later_commit():
    rig = Rig(11)
    rig.manager.adopt([table(0, family("A", 40), [1, 2, 3], acked=16, computed=40)])
    rig.manager.commit(0, 40)
    assert rig.hit(family("A", 40)) == ([1, 2], 32)


def test_tables_that_are_not_declared_are_freed_and_committed_prefixes_kept():
    rig = Rig(11)
    rig.run(0, family("A", 48))
    rig.run(1, family("B", 48))
    rig.manager.adopt([table(1, family("B", 48), [4, 5, 6], acked=48)])
    assert list(rig.manager.requests) == [1]
    assert rig.hit(family("A", 49)) == ([1, 2, 3], 48)
    assert rig.free_order == [7, 8, 9, 10, 3, 2, 1]


def test_unacknowledged_reservations_are_withdrawn():
    rig = Rig(11)
    rig.declare(0, family("A", 33))
    rig.manager.admit(0)
    rig.manager.adopt([table(0, family("A", 33), [1, 2, 3], acked=0, computed=33)])
    assert rig.hit(family("A", 33)) == ([], 0)
    rig.manager.ack(1)
    assert rig.hit(family("A", 33)) == ([], 0)
    rig.manager.commit(0, 33)
    assert rig.hit(family("A", 33)) == ([1, 2], 32)


def test_a_block_that_holds_something_else_by_now_loses_its_old_name():
    rig = Rig(11)
    rig.run(0, family("A", 48))
    rig.free(0)
    rig.manager.adopt([table(1, family("C", 32), [2, 7], acked=32)])
    assert rig.hit(family("A", 49)) == ([1], 16)
    assert rig.hit(family("C", 33)) == ([2, 7], 32)


def test_a_prefix_that_two_tables_share_is_held_by_both():
    rig = Rig(11)
    shared = family("A", 32)
    tables = [table(0, [*shared, 1], [1, 2, 3], acked=33), table(1, [*shared, 2], [1, 2, 4], acked=0, computed=33)]
    rig.manager.adopt(tables)
    assert [rig.pool.ref_cnt(block_id) for block_id in (1, 2, 3, 4)] == [2, 2, 1, 1]
    assert rig.hit([*shared, 3]) == ([1, 2], 32)


def test_adopting_the_same_tables_again_changes_nothing():
    rig = Rig(11)
    tables = [table(0, family("A", 40), [4, 2, 9], acked=40)]
    rig.manager.adopt(tables)
    before = (rig.free_order, rig.manager.figures, rig.hit(family("A", 40)))
    rig.manager.adopt(tables)
    assert (rig.free_order, rig.manager.figures, rig.hit(family("A", 40))) == before


def test_what_lay_behind_a_block_that_holds_something_else_is_forgotten_too_and_its_pins_end():
    rig = Rig(17)
    rig.run(0, family("A", 48))
    rig.free(0)
    rig.manager.pin(PinName(None, "p"), rig.manager.prefix_keys(family("A", 48)), expires_s=9.0)
    rig.manager.adopt([table(1, family("C", 32), [2, 7], acked=32)])
    assert [rig.is_hashed(block_id) for block_id in (1, 2, 3)] == [True, True, False]
    assert rig.manager.figures.num_pinned == 0


def test_pins_outlive_a_session():
    rig = Rig(17)
    rig.run(0, family("A", 32))
    rig.manager.pin(PinName(None, "p"), rig.manager.prefix_keys(family("A", 32)), expires_s=9.0)
    rig.manager.adopt([])
    assert (rig.manager.figures.num_held, rig.manager.figures.num_held_by_pins_only) == (2, 2)


def test_a_request_whose_namespace_was_erased_publishes_nothing_in_the_next_session_either():
    rig, namespace = Rig(17), b"n" * 16
    identity = Identity(extras=Extras(namespace=namespace))
    rig.manager.declare(0, family("A", 32), identity=identity)
    rig.alloc(0)
    rig.manager.erase_namespace(namespace)
    declared = replace(table(0, family("A", 32), [1, 2], acked=32), identity=identity)
    rig.manager.adopt([declared])
    rig.manager.commit(0, 32, family("B", 16))
    assert rig.hit(family("A", 33), identity.extras) == ([], 0)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([table(0, [1] * 16, [0], acked=1)], "holds block 0; the pool has 1 to 10"),
        ([table(0, [1] * 16, [11], acked=1)], "holds block 11"),
        ([table(0, [1] * 32, [3, 3], acked=32)], "holds a block twice"),
        ([table(0, [1] * 32, [3], acked=17)], "room for 16 tokens, num_computed_tokens 17"),
        ([table(0, [1] * 32, [3], acked=9, computed=8)], "num_computed_tokens 8 and num_acked_tokens 9"),
        ([table(0, [1] * 32, [3], acked=0)], "num_computed_tokens 0"),
        ([table(0, [1], [3], acked=1), table(0, [1], [4], acked=1)], "request 0 is declared twice"),
        ([table(0, [1] * 16, [3], acked=16), table(1, [2] * 16, [3], acked=16)], "requests 0 and 1 hold block 3"),
        ([table(0, [1] * 9, [3], acked=9), table(1, [1] * 9, [3], acked=9)], "requests 0 and 1 hold block 3"),
        ([table(0, [1] * 32, [3, 4], acked=32), table(1, [1] * 32, [4, 3], acked=32)], "hold block 4"),
    ],
)
def test_tables_that_contradict_each_other_are_refused_with_nothing_changed(tables: list[DeclaredTable], message: str):
    rig = Rig(11)
    rig.run(5, family("A", 33))
    before = (rig.free_order, rig.manager.figures, list(rig.manager.requests))
    with pytest.raises(BadTable, match=message):
        rig.manager.adopt(tables)
    assert (rig.free_order, rig.manager.figures, list(rig.manager.requests)) == before
