"""What is cached, told to an index that starts anew; and residency events to one that follows. Scenarios by number."""

import random

from kvcache_service.core.block import hash_of
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, BlocksStored, Event
from kvcache_service.core.residency import behind_their_parents, stored_runs
from tests.kvcache_service.rig import Rig, family


def follow(index: set[bytes], events: list[Event]) -> set[bytes]:
    """What an index does with events: it keeps hashes, not copies."""
    for event in events:
        match event:
            case BlocksStored(block_hashes=block_hashes):
                index.update(block_hashes)
            case BlockRemoved(block_hash=block_hash):
                index.discard(block_hash)
            case AllBlocksCleared():
                index.clear()
    return index


def findable(rig: Rig) -> set[bytes]:
    return {hash_of(key) for key in rig.pool.cache if rig.pool.is_key_committed(key)}


def in_order(rig: Rig) -> list[bytes]:
    return list(behind_their_parents(rig.pool, list(rig.pool.cache)))


def state(rig: Rig) -> list[Event]:
    return list(stored_runs(rig.pool, in_order(rig)))


def test_blocks_behind_one_another_are_one_run_that_names_its_parent():
    rig = Rig(41)
    rig.run(0, family("A", 48))
    rig.run(1, family("A", 32) + family("B", 32))
    keys = [*rig.manager.request(0).keys, *rig.manager.request(1).keys]
    first, second = stored_runs(rig.pool, behind_their_parents(rig.pool, keys))
    assert (first.parent_hash, first.block_ids, list(first.token_ids)) == (None, (1, 2, 3), [])
    assert (second.parent_hash, second.block_ids) == (first.block_hashes[1], (4, 5))


def test_blocks_that_are_only_reserved_are_not_told():
    rig = Rig(41)
    rig.declare(0, family("A", 48))
    rig.admit(0)
    assert list(rig.pool.cache)
    assert state(rig) == []


def test_a_run_is_not_continued_over_a_piece_but_its_parent_is_named():
    rig = Rig(41)
    rig.run(0, family("A", 48))
    keys = in_order(rig)
    (piece,) = stored_runs(rig.pool, keys[1:])
    assert piece.parent_hash == hash_of(keys[0])


def test_parents_come_before_their_children_and_all_is_told():
    rig, rng = Rig(24), random.Random(7)
    for handle in range(200):
        num_blocks, name = rng.randrange(1, 6), rng.choice("ABCD")
        rig.run(handle, family(name, 16 * num_blocks) + family("Z", 16 * rng.randrange(2)))
        rig.free(handle)
        told: set[bytes] = set()
        for run in stored_runs(rig.pool, in_order(rig)):
            assert run.parent_hash is None or run.parent_hash in told
            told.update(run.block_hashes)
        assert told == findable(rig)


def test_a_block_that_goes_while_others_are_told_is_left_out():
    rig = Rig(6)
    rig.run(0, family("A", 48))
    rig.run(1, family("B", 16))
    rig.free(0)
    keys = [*rig.manager.request(1).keys, *rig.manager.request(0).keys]
    telling = behind_their_parents(rig.pool, keys)
    assert next(telling) == keys[0]
    rig.run(2, family("C", 48))  # takes the blank block and the two deepest of A
    assert list(telling) == keys[1:2]


def test_scenario_13_an_index_drops_a_hash_only_when_its_last_copy_goes():
    rig, index = Rig(5), set[bytes]()
    rig.declare(0, family("A", 16))
    rig.declare(1, family("A", 16))
    rig.admit(0)
    rig.ack(0)
    rig.admit(1)  # one token must be computed, so the same content is computed into a block of its own
    rig.ack(1)
    copies = rig.pool.committed_copies(rig.pool.key(1) or b"")
    assert len(copies) == 2
    (block_hash,) = follow(index, rig.manager.take_events())
    rig.free(0)
    rig.free(1)
    rig.run(2, family("C", 48))  # takes two blank blocks and evicts one copy
    assert block_hash in follow(index, rig.manager.take_events())
    rig.run(3, family("D", 16))
    assert block_hash not in follow(index, rig.manager.take_events())


def test_an_index_that_follows_and_one_that_starts_anew_agree_with_the_pool():
    rig, rng, index = Rig(16), random.Random(3), set[bytes]()
    for handle in range(300):
        rig.run(handle, family(rng.choice("ABC"), 16 * rng.randrange(1, 5) + 1))
        rig.free(handle)
        if handle % 100 == 99:
            rig.manager.reset_prefix_cache()
        assert follow(index, rig.manager.take_events()) == findable(rig) == follow(set(), state(rig))
