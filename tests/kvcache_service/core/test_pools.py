"""Incarnations, sessions, and the order of plans."""

from dataclasses import replace

import pytest

from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.errors import (
    BadPlan,
    BadPool,
    BadTable,
    Conflict,
    FingerprintMismatch,
    OutOfOrder,
    StaleSession,
    UnknownPool,
)
from kvcache_service.core.plan import Admits, Declaration, DeclaredTable, Grows, Plan
from kvcache_service.core.pools import NUM_REMEMBERED_INCARNATIONS, Pool, PoolKey, Pools
from tests.kvcache_service.rig import family

FINGERPRINT = Fingerprint(model_digest=b"model", kv_dtype="float32")
W1 = PoolKey(pool_id="w1", incarnation=5, session=1)
W2 = PoolKey(pool_id="w2", incarnation=9, session=1)


def open_pool(pools: Pools, key: PoolKey = W1, fingerprint: Fingerprint = FINGERPRINT, num_blocks: int = 11) -> Pool:
    return pools.open(key, num_blocks, fingerprint=fingerprint, tables=[])


def admit(handle: int, prompt: list[int], step: int = 1) -> Plan:
    return Plan(
        step=step,
        acked_step=step - 1,
        token_budget=1000,
        max_admissions=1,
        declares=[Declaration(handle=handle, token_ids=prompt)],
        admits=Admits(handles=[handle], num_known_tokens=[len(prompt)], num_watermark_blocks=[0]),
    )


def test_the_same_bytes_get_the_same_answer_and_change_nothing():
    pool = open_pool(Pools())
    grants = pool.plan_step(admit(0, family("A", 40)), b"digest")
    figures = pool.manager.figures
    assert pool.plan_step(admit(0, family("A", 40)), b"digest") is grants
    assert (pool.manager.figures, pool.step) == (figures, 1)


def test_other_bytes_under_an_answered_key_are_refused():
    pool = open_pool(Pools())
    pool.plan_step(admit(0, family("A", 40)), b"digest")
    with pytest.raises(Conflict, match="plan 1 of pool w1 was answered for other bytes"):
        pool.plan_step(admit(0, family("B", 40)), b"another")


def test_the_last_two_answers_are_kept():
    pool = open_pool(Pools())
    answers = [pool.plan_step(admit(step, family("A", 40), step), bytes([step])) for step in (1, 2, 3)]
    assert pool.plan_step(admit(2, [], 2), b"\x02") is answers[1]
    assert pool.plan_step(admit(3, [], 3), b"\x03") is answers[2]
    with pytest.raises(OutOfOrder, match="plan 1 came to pool w1, which waits for 4"):
        pool.plan_step(admit(1, [], 1), b"\x01")


def test_a_gap_in_the_plans_is_refused():
    pool = open_pool(Pools())
    with pytest.raises(OutOfOrder, match="plan 2 came to pool w1, which waits for 1"):
        pool.plan_step(admit(0, [1], 2), b"")


def test_a_refused_plan_leaves_its_number_free():
    pool = open_pool(Pools())
    with pytest.raises(BadPlan):
        pool.plan_step(Plan(step=1, grows=Grows(handles=[9])), b"bad")
    pool.plan_step(admit(0, [1]), b"good")
    assert pool.step == 1


def test_a_higher_session_starts_counting_anew_and_keeps_committed_prefixes():
    pools = Pools()
    pool = open_pool(pools)
    pool.plan_step(admit(0, family("A", 40)), b"1")
    pool.plan_step(Plan(step=2, acked_step=1), b"2")
    again = open_pool(pools, replace(W1, session=2))
    assert again is pool
    assert again.step == 0
    assert again.manager.lookup(family("A", 40)) == [1, 2]
    again.plan_step(admit(0, family("A", 40)), b"3")


def test_messages_of_an_earlier_session_are_stale():
    pools = Pools()
    open_pool(pools, replace(W1, session=3))
    for call in (pools.get, lambda key: open_pool(pools, key)):
        with pytest.raises(StaleSession, match="session 2 of incarnation 5 of pool w1 is over"):
            call(replace(W1, session=2))


def test_a_session_that_was_not_opened_is_unknown():
    pools = Pools()
    with pytest.raises(UnknownPool):
        pools.get(W1)
    open_pool(pools)
    for key in (replace(W1, session=2), replace(W1, incarnation=6)):
        with pytest.raises(UnknownPool, match="open the pool"):
            pools.get(key)


def test_a_new_incarnation_replaces_the_old_one_for_good():
    pools = Pools()
    open_pool(pools).plan_step(admit(0, family("A", 40)), b"1")
    fresh = open_pool(pools, replace(W1, incarnation=6))
    assert fresh.manager.lookup(family("A", 40)) == []
    for call in (pools.get, lambda key: open_pool(pools, key)):
        with pytest.raises(StaleSession):
            call(replace(W1, session=7))


def test_a_closed_incarnation_cannot_be_opened_again_and_closing_twice_is_harmless():
    pools = Pools()
    open_pool(pools)
    assert pools.close("w1", 5)
    assert not pools.close("w1", 5)
    with pytest.raises(StaleSession):
        open_pool(pools)


def test_what_is_over_is_remembered_within_a_bound():
    pools = Pools()
    for number in range(2 * NUM_REMEMBERED_INCARNATIONS):
        pools.close(f"w{number}", 5)
    assert len(pools._over) == NUM_REMEMBERED_INCARNATIONS
    with pytest.raises(StaleSession):
        open_pool(pools, replace(W1, pool_id=f"w{2 * NUM_REMEMBERED_INCARNATIONS - 1}"))


def test_closing_an_old_incarnation_leaves_the_younger_alone():
    pools = Pools()
    open_pool(pools, replace(W1, incarnation=6))
    assert not pools.close("w1", 5)
    assert pools.get(replace(W1, incarnation=6))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hash_scheme", 2),
        ("model_digest", b"other"),
        ("tokenizer_digest", b"other"),
        ("block_size", 32),
        ("kv_dtype", "bfloat16"),
        ("kv_layout", "other"),
    ],
)
def test_a_worker_with_another_fingerprint_is_refused_by_the_name_of_the_field(field: str, value: object):
    pools = Pools()
    open_pool(pools)
    other = replace(FINGERPRINT, **{field: value})  # type: ignore[arg-type]
    for key in (W2, replace(W1, session=2)):
        with pytest.raises(FingerprintMismatch, match=f"^{field} is") as refused:
            open_pool(pools, key, other)
        assert refused.value.metadata == {"field": field}
    assert [pool.key for pool in pools] == [W1]


def test_a_new_incarnation_may_bring_another_model_when_it_is_alone():
    pools = Pools()
    open_pool(pools)
    other = replace(FINGERPRINT, model_digest=b"other")
    assert open_pool(pools, replace(W1, incarnation=6), other).fingerprint == other


@pytest.mark.parametrize("num_blocks", [-1, 0, 1, 1 << 25])
def test_a_pool_needs_a_possible_size(num_blocks: int):
    with pytest.raises(BadPool, match="num_blocks"):
        open_pool(Pools(), num_blocks=num_blocks)


def test_a_pool_needs_a_name_a_block_size_and_keeps_its_size():
    pools = Pools()
    with pytest.raises(BadPool, match="pool_id"):
        open_pool(pools, replace(W1, pool_id=""))
    with pytest.raises(BadPool, match="block_size"):
        open_pool(pools, fingerprint=replace(FINGERPRINT, block_size=0))
    open_pool(pools)
    with pytest.raises(BadPool, match="has 11 blocks, not 12"):
        open_pool(pools, replace(W1, session=2), num_blocks=12)


def test_an_opening_with_bad_tables_changes_nothing():
    pools = Pools()
    pool = open_pool(pools)
    pool.plan_step(admit(0, family("A", 40)), b"1")
    bad = DeclaredTable(handle=0, token_ids=[1], block_ids=[99], num_computed_tokens=1)
    for key in (replace(W1, session=2), replace(W1, incarnation=6), W2):
        with pytest.raises(BadTable):
            pools.open(key, 11, fingerprint=FINGERPRINT, tables=[bad])
    assert pools.get(W1) is pool
    assert pool.manager.block_table(0) == [1, 2, 3]
    assert pool.step == 1
