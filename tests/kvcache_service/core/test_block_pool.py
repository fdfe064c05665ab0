"""Blocks by number: given out, shared, named, evicted. Scenarios are those of docs/scenarios.md."""

import pytest

from kvcache_service.core.block import block_key, hash_of
from kvcache_service.core.block_names import Run
from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.errors import OutOfBlocks
from kvcache_service.core.events import BlockRemoved, CopyDropped
from tests.kvcache_service.rig import Rig, family

H0, H1, H2 = (block_key(bytes([number]) * 16) for number in range(3))


def run(*block_ids_and_keys: tuple[int, bytes], parent: bytes | None = None, depth: int = 0) -> Run:
    block_ids, keys = zip(*block_ids_and_keys, strict=True)
    return Run(block_ids=block_ids, keys=keys, first_token_ids=[0] * len(keys), parent=parent, depth=depth)


def test_scenario_1_blocks_are_given_out_ascending_and_never_the_null_block():
    pool = BlockPool(11)
    assert pool.num_free == 10
    assert pool.allocate(10) == list(range(1, 11))
    assert pool.num_free == 0
    with pytest.raises(OutOfBlocks, match="asked for 1 blocks, 0 are free"):
        pool.allocate(1)


def test_scenario_1_usage_counts_held_blocks_of_the_usable_ones():
    rig = Rig(11)
    assert rig.manager.figures.usage == 0.0
    rig.run(0, family("A", 160))
    assert rig.manager.figures.usage == 1.0


def test_an_allocation_that_does_not_fit_changes_nothing():
    pool = BlockPool(4)
    with pytest.raises(OutOfBlocks):
        pool.allocate(4)
    assert list(pool.free_queue) == [1, 2, 3]


def pool_of_four() -> BlockPool:
    """Blocks 1 to 4 named h0, h1, h2, h0, all free, in the order of eviction h1, first h0, h2, second h0."""
    pool = BlockPool(5)
    pool.allocate(4)
    for block_id, key in enumerate((H0, H1, H2, H0), 1):
        pool.commit(run((block_id, key)))
    pool.free([2, 1, 3, 4])
    return pool


def test_scenario_12_a_hash_stays_findable_until_its_last_copy_goes():
    pool = pool_of_four()
    assert {key: pool.cache.copies(key) for key in pool.cache} == {H0: (1, 4), H1: (2,), H2: (3,)}
    left = []
    for _ in range(4):
        pool.allocate(1)
        left.append({key: len(pool.cache.copies(key)) for key in pool.cache})
    assert left == [{H0: 2, H2: 1}, {H0: 1, H2: 1}, {H0: 1}, {}]


def test_scenario_12_lookup_returns_the_first_inserted_copy_that_is_left():
    pool = pool_of_four()
    assert pool.cache.find(H0) == 1
    pool.allocate(2)
    assert pool.cache.find(H0) == 4


def test_scenario_13_an_index_drops_a_hash_only_when_its_last_copy_is_evicted():
    pool = pool_of_four()
    index = {hash_of(key) for key in (H0, H1, H2)}
    seen = []
    for _ in range(4):
        pool.allocate(1)
        index -= {event.block_hash for event in pool.take_events() if isinstance(event, BlockRemoved)}
        seen.append(hash_of(H0) in index)
    assert seen == [True, True, True, False]
    assert index == set()


def test_scenario_13_a_store_of_places_hears_of_every_copy():
    pool = pool_of_four()
    pool.allocate(4)
    assert pool.take_events() == [
        BlockRemoved(H1, 2),
        CopyDropped(H0, 1),
        BlockRemoved(H2, 3),
        BlockRemoved(H0, 4),
    ]


def test_scenario_17_a_block_is_never_given_back_more_often_than_it_was_taken():
    pool = BlockPool(3)
    block_ids = pool.allocate(2)
    pool.free(block_ids)
    with pytest.raises(AssertionError, match="block 1 was freed more often"):
        pool.free([1])


def test_a_touched_block_leaves_the_free_queue_once_and_comes_back_at_the_tail():
    pool = pool_of_four()
    pool.touch([1])
    pool.touch([1])
    assert list(pool.free_queue) == [2, 3, 4]
    assert (pool.ref_cnt(1), pool.num_cached) == (2, 3)
    pool.free([1])
    pool.free([1])
    assert list(pool.free_queue) == [2, 3, 4, 1]


def test_freed_blocks_without_a_name_go_to_the_head_as_a_batch():
    pool = BlockPool(6)
    block_ids = pool.allocate(3)
    pool.commit(run((1, H0)))
    pool.free(block_ids[::-1])
    assert list(pool.free_queue) == [3, 2, 4, 5, 1]


def test_with_caching_off_every_freed_block_goes_to_the_tail():
    pool = BlockPool(6, caching=False)
    pool.free(pool.allocate(3)[::-1])
    assert list(pool.free_queue) == [4, 5, 3, 2, 1]


def test_a_withdrawn_free_block_is_given_out_next():
    pool, reservation = BlockPool(5), object()
    block_ids = pool.allocate(2)
    pool.reserve(run((1, H0)), reservation)
    pool.free(block_ids[::-1])
    assert list(pool.free_queue) == [2, 3, 4, 1]
    pool.withdraw(1)
    assert list(pool.free_queue) == [1, 2, 3, 4]
    assert (pool.num_cached, pool.take_events()) == (0, [])
