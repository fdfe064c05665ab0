"""Variations of the scenarios of docs/scenarios.md: other sizes, orders and identities, with exact outcomes."""

from itertools import product

import pytest

from kvcache_service.core.errors import BadTable, Conflict, OutOfOrder, StaleSession, UnknownPool
from kvcache_service.core.events import BlockRemoved, CopyDropped
from kvcache_service.core.hash_extras import NO_EXTRAS, Adapter, Extras, MultimodalItem
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.plan import Admits, Declaration, DeclaredTable, Frees, Grows, Plan
from kvcache_service.core.pools import PoolKey, Pools
from tests.kvcache_service.core.pools_rig import FINGERPRINT, opened, start
from tests.kvcache_service.rig import family

IDENTITIES = [
    NO_EXTRAS,
    Extras(salt="a"),
    Extras(salt="b"),
    Extras(namespace=b"n" * 16),
    Extras(namespace=b"m" * 16),
    Extras(namespace=b"n" * 16, salt="a"),
    Extras(adapter=Adapter(name="a", content_digest=b"1")),
    Extras(adapter=Adapter(name="a", content_digest=b"2")),
    Extras(adapter=Adapter(name="a1", content_digest=b"")),
    Extras(namespace=b"n" * 16, adapter=Adapter(name="a", content_digest=b"1")),
    Extras(items=(MultimodalItem(content_digest=b"d", offset=3, num_tokens=4),)),
    Extras(items=(MultimodalItem(content_digest=b"d", offset=4, num_tokens=4),)),
]


class Small:
    """A manager whose every admission is acknowledged at once."""

    def __init__(self, num_blocks: int, block_size: int = 4) -> None:
        self.manager = KVCacheManager(num_blocks=num_blocks, block_size=block_size)
        self._handle = 0

    def run(self, token_ids: list[int]) -> int:
        self._handle += 1
        self.manager.step += 1
        self.manager.declare(self._handle, token_ids)
        self.manager.admit(self._handle)
        self.manager.ack(self.manager.step)
        return self._handle

    def free(self, handle: int) -> None:
        self.manager.free(handle, 0)


def test_the_first_inserted_copy_is_found_although_a_later_one_has_been_a_newest_child():
    """Block 1 is the child noted last at the start; given out and named anew it is the second copy of block 2."""
    small = Small(4)
    other = small.run(family("Y", 3))
    small.run(family("A", 4))
    small.free(other)
    small.free(small.run(family("L", 4)))
    small.run(family("Z", 3))
    again = small.run(family("A", 4))
    assert small.manager.block_table(again) == [1]
    assert small.manager.lookup(family("A", 5)) == [2]


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 32])
def test_a_hit_block_is_never_evicted_for_its_own_request(block_size: int):
    small = Small(3, block_size)
    first, second = small.run(family("A", block_size)), small.run(family("C", block_size))
    small.free(second)
    small.free(first)
    both = small.run(family("C", block_size) + family("A", block_size))
    assert small.manager.block_table(both) == [2, 1]


def test_the_order_of_two_releases_is_the_order_of_eviction():
    small = Small(6)
    first, second = small.run(family("A", 8)), small.run(family("C", 9))
    small.free(second)
    small.free(first)
    assert list(small.manager.pool.free_queue) == [5, 4, 3, 2, 1]


def test_a_removal_is_told_when_the_last_of_two_copies_goes():
    small = Small(3)
    for handle in (small.run(family("A", 4)), small.run(family("A", 4))):
        small.free(handle)
    small.manager.take_events()
    small.run(family("C", 3))
    assert [type(event) for event in small.manager.take_events()] == [CopyDropped]
    assert small.manager.lookup(family("A", 5)) == [2]
    small.run(family("D", 3))
    assert [type(event) for event in small.manager.take_events()] == [BlockRemoved]


@pytest.mark.parametrize(("ours", "theirs"), list(product(range(len(IDENTITIES)), repeat=2)))
def test_every_two_identities_are_strangers(ours: int, theirs: int):
    keys = [KVCacheManager(num_blocks=2).prefix_keys(family("A", 32), IDENTITIES[who]) for who in (ours, theirs)]
    assert (set(keys[0]) & set(keys[1]) == set()) == (ours != theirs)


@pytest.mark.parametrize("namespace_block", [0, 1, 2, 3])
def test_as_many_blocks_as_are_public_are_shared(namespace_block: int):
    manager = KVCacheManager(num_blocks=2, block_size=4)
    plain = manager.prefix_keys(family("A", 12))
    keys = manager.prefix_keys(family("A", 12), Extras(namespace=b"n", namespace_block=namespace_block))
    assert [key == other for key, other in zip(plain, keys, strict=True)] == [
        index < namespace_block for index in range(3)
    ]


def plan(step: int, **ops: object) -> Plan:
    defaults: dict[str, object] = {"token_budget": 100, "max_admissions": 9, "acked_step": step - 1}
    return Plan(step=step, **(defaults | ops))  # type: ignore[arg-type]


def admitting(step: int, *prompts: list[int], **ops: object) -> Plan:
    handles = list(range(1, len(prompts) + 1))
    declares = [Declaration(handle=handle, token_ids=ids) for handle, ids in zip(handles, prompts, strict=True)]
    known = [len(ids) for ids in prompts]
    admits = Admits(handles=handles, num_known_tokens=known, num_watermark_blocks=[0] * len(handles))
    return plan(step, declares=declares, admits=admits, **ops)


@pytest.mark.parametrize("victims", [[1, 2, 3], [2, 1, 3], [3, 2, 1]])
def test_who_gives_way_follows_the_order_of_victims_even_if_granted_already(victims: list[int]):
    """Each of three holds a full block; the pool is full: whoever needs one takes that of the next victim."""
    manager = KVCacheManager(num_blocks=4, block_size=4, caching=False)
    manager.plan_step(admitting(1, family("A", 4), family("C", 4), family("D", 4)))
    grants = manager.plan_step(plan(2, grows=Grows(handles=[1, 2, 3], wants=[1, 1, 1], victims=victims)))
    preempted, granted = {1: ([1], [0, 0, 0]), 2: ([2, 1], [0, 0, 1]), 3: ([3, 2], [1, 0, 0])}[victims[0]]
    assert list(grants.preempted_handles) == preempted
    assert list(grants.grow_num_tokens) == granted


def test_a_victim_granted_in_this_plan_gives_its_tokens_to_the_others():
    manager = KVCacheManager(num_blocks=4, block_size=4, caching=False)
    manager.plan_step(admitting(1, family("A", 3), family("C", 8)))
    grows = Grows(handles=[1, 2], wants=[1, 2], victims=[1])
    grants = manager.plan_step(plan(2, token_budget=2, grows=grows))
    assert (list(grants.grow_num_tokens), list(grants.preempted_handles)) == ([0, 1], [1])
    assert list(grants.grow_new_block_ids) == [1]


def test_a_failed_step_leaves_what_acknowledged_ones_committed():
    manager = KVCacheManager(num_blocks=9, block_size=4)
    manager.plan_step(admitting(1, family("A", 12), token_budget=4))
    manager.plan_step(plan(2, grows=Grows(handles=[1], wants=[8])))
    manager.plan_step(plan(3, acked_step=1, failed_step=2, frees=Frees(handles=[1], epochs=[0])))
    assert manager.lookup(family("A", 13)) == [1]
    assert list(manager.pool.free_queue) == [2, 3, 4, 5, 6, 7, 8, 1]


def test_a_reservation_dies_when_its_block_is_given_out_again():
    manager = KVCacheManager(num_blocks=2, block_size=4)
    manager.plan_step(admitting(1, family("A", 4)))
    declares = [Declaration(handle=2, token_ids=family("C", 3))]
    again = Admits(handles=[2], num_known_tokens=[3], num_watermark_blocks=[0])
    frees = Frees(handles=[1], epochs=[0])
    manager.plan_step(plan(2, acked_step=0, frees=frees, declares=declares, admits=again))
    manager.plan_step(plan(3))
    assert manager.lookup(family("A", 5)) == []
    assert manager.take_events() == []


def test_plans_are_repeated_conflicting_or_out_of_order():
    pool = opened(Pools(), "p")
    first = admitting(1, family("A", 4))
    grants = pool.plan_step(first, b"one")
    figures = pool.manager.figures
    assert pool.plan_step(first, b"one") is grants
    with pytest.raises(Conflict):
        pool.plan_step(first, b"other")
    for step in (0, 3, 4):
        with pytest.raises(OutOfOrder):
            pool.plan_step(plan(step, acked_step=0), b"late")
    assert pool.manager.figures == figures


def test_a_lower_session_is_over_and_a_higher_one_is_not_open_yet():
    pools = Pools()
    key = PoolKey(pool_id="p", incarnation=1, session=2)
    pools.open(key, 9, fingerprint=FINGERPRINT, tables=[])
    with pytest.raises(StaleSession):
        pools.get(PoolKey(pool_id="p", incarnation=1, session=1))
    with pytest.raises(UnknownPool):
        pools.get(PoolKey(pool_id="p", incarnation=1, session=3))
    pools.close("p", 1)
    with pytest.raises(StaleSession):
        pools.open(key, 9, fingerprint=FINGERPRINT, tables=[])


def table(handle: int, token_ids: list[int], block_ids: list[int]) -> DeclaredTable:
    num = len(token_ids)
    return DeclaredTable(
        handle=handle, token_ids=token_ids, block_ids=block_ids, num_acked_tokens=num, num_computed_tokens=num
    )


def test_declared_tables_may_share_full_blocks_of_one_prefix_only():
    manager = KVCacheManager(num_blocks=9, block_size=4)
    manager.adopt([table(1, family("A", 8), [3, 5]), table(2, family("A", 4) + family("C", 2), [3, 7])])
    assert [manager.pool.ref_cnt(block_id) for block_id in (3, 5, 7)] == [2, 1, 1]
    assert manager.lookup(family("A", 9)) == [3, 5]
    figures = manager.figures
    for block_ids in ([5, 6], [3, 3], [0, 4], [3, 9]):
        with pytest.raises(BadTable):
            manager.adopt([table(1, family("A", 8), [3, 5]), table(2, family("C", 8), block_ids)])
    assert manager.figures == figures


def test_pools_of_two_workers_share_no_block():
    pools = Pools()
    one, two = opened(pools, "one"), opened(pools, "two")
    start(one, 1, family("A", 40))
    assert (len(one.manager.lookup(family("A", 40))), two.manager.lookup(family("A", 40))) == (2, [])
