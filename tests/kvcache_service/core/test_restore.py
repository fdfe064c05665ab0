"""Which recorded prefixes of a pool come back, and which are left out because they may hold something else by now."""

from dataclasses import replace
from typing import Any

import pytest

from kvcache_service.core.block import block_key
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.events import BlocksStored
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.plan import DeclaredTable
from kvcache_service.core.pools import Pool, PoolKey, Pools
from kvcache_service.core.request import Identity
from kvcache_service.core.restore import (
    GrantedBlocks,
    Opening,
    PoolRecord,
    Position,
    RecordedBlock,
    RecordedPin,
    Records,
    RestoreOutcome,
)
from kvcache_service.core.statistics import MissReason, TokenCounts
from kvcache_service.core.totals import Totals
from tests.kvcache_service.rig import family

KEY = PoolKey(pool_id="w1", incarnation=5, session=2)
FINGERPRINT = Fingerprint(model_digest=b"m")
NAMESPACE = b"n" * 16
BEGINNING = Position(0, 0)
A, B = family("A", 64), family("B", 64)


def keys_of(prompt: list[int], extras: Extras = NO_EXTRAS) -> list[bytes]:
    pool = Pools().open(KEY, 2, fingerprint=FINGERPRINT, tables=[])
    return pool.manager.prefix_keys(prompt, extras)


def chain(prompt: list[int], first_block_id: int, namespace: bytes | None = None) -> list[RecordedBlock]:
    """A prompt's blocks, in blocks with ascending numbers."""
    keys = keys_of(prompt, Extras(namespace=namespace))
    return [
        RecordedBlock(key, keys[depth - 1] if depth else None, depth, namespace, [first_block_id + depth])
        for depth, key in enumerate(keys)
    ]


def record(*blocks: RecordedBlock, **changes: object) -> PoolRecord:
    made = PoolRecord(
        pool_id="w1",
        incarnation=5,
        scheduler_incarnation=900,
        position=Position(1, 10),
        num_blocks=11,
        fingerprint=FINGERPRINT,
        blocks=list(blocks),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def opening(*granted: GrantedBlocks, after: Position = BEGINNING, **changes: object) -> Opening:
    made = Opening(scheduler_incarnation=900, number=2, granted_after=after, granted=granted)
    return replace(made, **changes)  # type: ignore[arg-type]


def reopened(
    found: PoolRecord | None, how: Opening, *, tables: tuple[DeclaredTable, ...] = (), caching: bool = True
) -> Pool:
    pools = Pools(caching=caching)
    pools.records = Records([found] if found else [])
    return pools.open(KEY, 11, fingerprint=FINGERPRINT, tables=tables, opening=how)


def hits(pool: Pool, prompt: list[int], extras: Extras = NO_EXTRAS) -> list[int]:
    return pool.manager.lookup([*prompt, 0], extras=extras, is_committed_only=True)


def test_what_is_recorded_hits_again_and_the_deepest_block_is_given_out_first():
    pool = reopened(record(*chain(A, 3)), opening())
    assert pool.restored.outcome is RestoreOutcome.RESTORED
    assert pool.restored.num_blocks == 4
    assert hits(pool, A) == [3, 4, 5, 6]
    assert list(pool.manager.pool.free_queue) == [1, 2, 7, 8, 9, 10, 6, 5, 4, 3]
    assert pool.manager.figures.num_cached == 4


def test_a_block_given_out_after_the_recorded_plan_has_lost_its_name_and_so_has_what_lay_behind_it():
    pool = reopened(record(*chain(A, 3)), opening(GrantedBlocks(Position(1, 11), [5])))
    assert hits(pool, A) == [3, 4]
    assert pool.restored.num_blocks == 2


@pytest.mark.parametrize("position", [Position(1, 10), Position(1, 9), Position(0, 99)])
def test_what_the_recorded_plan_and_those_before_it_gave_out_is_in_the_record_already(position: Position):
    assert hits(reopened(record(*chain(A, 3)), opening(GrantedBlocks(position, [5]))), A) == [3, 4, 5, 6]


def test_a_plan_of_a_later_opening_is_later_whatever_its_number():
    assert hits(reopened(record(*chain(A, 3)), opening(GrantedBlocks(Position(2, 1), [3]))), A) == []


def test_nothing_comes_back_if_the_scheduler_has_forgotten_plans_behind_the_record():
    assert hits(reopened(record(*chain(A, 3)), opening(after=Position(1, 10))), A) == [3, 4, 5, 6]
    pool = reopened(record(*chain(A, 3)), opening(after=Position(1, 11)))
    assert (hits(pool, A), pool.restored.outcome) == ([], RestoreOutcome.TOO_OLD)


@pytest.mark.parametrize("changes", [{"scheduler_incarnation": 901}, {"number": 0}])
def test_another_scheduler_does_not_know_what_was_given_out(changes: dict[str, Any]):
    pool = reopened(record(*chain(A, 3)), opening(**changes))
    assert (hits(pool, A), pool.restored.outcome) == ([], RestoreOutcome.TOO_OLD)


@pytest.mark.parametrize(
    "changes", [{"incarnation": 4}, {"num_blocks": 12}, {"fingerprint": Fingerprint(model_digest=b"other")}]
)
def test_a_record_of_another_life_or_model_is_none(changes: dict[str, object]):
    pool = reopened(record(*chain(A, 3), **changes), opening())
    assert (hits(pool, A), pool.restored.outcome) == ([], RestoreOutcome.NOTHING_RECORDED)


def test_declared_tables_take_names_only_from_the_declared_ids():
    """Block 3 was recorded for A; its request says that it holds B."""
    table = DeclaredTable(
        handle=1, epoch=0, token_ids=[*B[:32], 7], block_ids=[3, 9], num_acked_tokens=32, num_computed_tokens=32
    )
    pool = reopened(record(*chain(A, 3)), opening(), tables=(table,))
    assert hits(pool, A) == []
    assert hits(pool, B) == [3, 9]


def test_what_lies_behind_a_declared_table_comes_back():
    """Its leading blocks are named by the table itself, the others were a longer request's."""
    table = DeclaredTable(
        handle=1, epoch=0, token_ids=[*A[:32], 7], block_ids=[3, 4, 9], num_acked_tokens=33, num_computed_tokens=33
    )
    pool = reopened(record(*chain(A, 3)), opening(), tables=(table,))
    assert hits(pool, A) == [3, 4, 5, 6]
    assert pool.restored.num_blocks == 2


def test_copies_come_back_as_copies():
    first, *others = chain(A, 3)
    pool = reopened(record(replace(first, block_ids=[9, 3]), *others), opening())
    assert pool.manager.pool.committed_copies(first.key) == [9, 3]


def test_a_block_recorded_under_two_keys_is_neither():
    pool = reopened(record(*chain(A[:16], 3), *chain(B[:16], 3)), opening())
    assert pool.restored.num_blocks == 0


@pytest.mark.parametrize("block_id", [0, 11, 4_000_000_000])
def test_a_block_that_the_pool_has_not_is_left_out(block_id: int):
    (block,) = chain(A[:16], 3)
    assert reopened(record(replace(block, block_ids=[block_id])), opening()).restored.num_blocks == 0


def test_a_namespace_comes_back_as_one():
    pool = reopened(record(*chain(A, 3, NAMESPACE)), opening())
    assert hits(pool, A) == []
    assert len(hits(pool, A, Extras(namespace=NAMESPACE))) == 4
    assert pool.manager.pool.namespace(3) == NAMESPACE


def test_an_erased_namespace_is_gone_from_records_that_nobody_has_claimed_yet():
    pools = Pools()
    pools.records = Records([record(*chain(A, 3, NAMESPACE), *chain(B, 7))])
    assert pools.records.erase(NAMESPACE) == ["w1"]
    assert pools.records.erase(NAMESPACE) == []
    pool = pools.open(KEY, 11, fingerprint=FINGERPRINT, tables=[], opening=opening())
    assert hits(pool, A, Extras(namespace=NAMESPACE)) == []
    assert hits(pool, B) == [7, 8, 9, 10]


def test_a_pin_comes_back_as_far_as_its_blocks_do():
    pins = [RecordedPin(namespace=None, pin_id="p", block_ids=[1, 2, 3], expires_s=50.0),
            RecordedPin(namespace=None, pin_id="lost", block_ids=[7], expires_s=50.0)]  # fmt: skip
    granted = opening(GrantedBlocks(Position(1, 11), [3, 7]))
    pool = reopened(record(*chain(A, 1), *chain(B[:16], 7), pins=pins), granted)
    held = pool.manager.pins.get(PinName(None, "p"))
    assert held is not None
    assert (list(held.block_ids), held.expires_s) == ([1, 2], 50.0)
    assert len(pool.manager.pins) == 1
    assert pool.manager.figures.num_pinned == 2
    assert pool.manager.pins.expire(51.0) == 1


def test_counting_goes_on_where_the_record_stopped_even_if_nothing_comes_back():
    totals = Totals(num_query_tokens=7, num_hit_tokens=3, num_evicted_blocks=2, num_pins_given_way=1)
    totals.misses[MissReason.COLD] = 4
    tenants: dict[bytes | None, TokenCounts] = {NAMESPACE: TokenCounts(7, 3)}
    pool = reopened(record(*chain(A, 3), totals=totals, tenants=tenants), opening(number=0))
    figures = pool.manager.figures
    assert (figures.num_query_tokens, figures.num_hit_tokens, figures.num_evicted_blocks) == (7, 3, 2)
    assert (pool.manager.statistics.misses[MissReason.COLD], pool.manager.pins.num_given_way) == (4, 1)
    assert pool.manager.statistics.by_namespace == tenants


def test_whoever_keeps_an_index_is_told_parents_first_and_without_token_ids():
    branch = [*A[:32], *B[:16]]
    (third,) = chain(branch, 7)[2:]
    pool = reopened(record(*chain(A, 3), third), opening())
    told = [event for event in pool.manager.take_events() if isinstance(event, BlocksStored)]
    assert [event.block_ids for event in told] == [(3, 4, 5, 6), (9,)]
    assert block_key(told[1].parent_hash or b"") == keys_of(A)[1]
    assert not any(event.token_ids for event in told)


def test_with_caching_off_nothing_is_named():
    pool = reopened(record(*chain(A, 3)), opening(), caching=False)
    assert (pool.restored.num_blocks, pool.manager.figures.num_cached) == (0, 0)


def test_a_pool_that_was_not_lost_needs_no_record():
    pools = Pools()
    pools.open(KEY, 11, fingerprint=FINGERPRINT, tables=[], opening=opening())
    pools.records = Records([record(*chain(A, 3))])
    again = pools.open(replace(KEY, session=3), 11, fingerprint=FINGERPRINT, tables=[], opening=opening(number=3))
    assert (again.restored.outcome, again.position) == (RestoreOutcome.NOT_NEEDED, Position(3, 0))


def test_no_answer_is_told_from_no_record():
    pools = Pools()
    pools.records = Records(is_known=False)
    pool = pools.open(KEY, 11, fingerprint=FINGERPRINT, tables=[], opening=opening())
    assert pool.restored.outcome is RestoreOutcome.NO_ANSWER


def test_a_record_is_used_once():
    pools = Pools()
    pools.records = Records([record(*chain(A, 3))])
    for incarnation, outcome in ((5, RestoreOutcome.RESTORED), (6, RestoreOutcome.NOTHING_RECORDED)):
        key = replace(KEY, incarnation=incarnation)
        assert pools.open(key, 11, fingerprint=FINGERPRINT, tables=[], opening=opening()).restored.outcome is outcome


def test_identities_of_declared_tables_hash_in_their_namespace():
    table = DeclaredTable(
        handle=1, epoch=0, token_ids=[*A[:16], 7], block_ids=[3, 9], num_acked_tokens=17, num_computed_tokens=17,
        identity=Identity(extras=Extras(namespace=NAMESPACE)),
    )  # fmt: skip
    pool = reopened(record(*chain(A, 3, NAMESPACE)), opening(), tables=(table,))
    assert hits(pool, A, Extras(namespace=NAMESPACE)) == [3, 4, 5, 6]
