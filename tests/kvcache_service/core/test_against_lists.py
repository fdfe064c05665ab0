"""The block pool against plain lists: after every plan both must be the same in everything, down to the free order.

A difference is printed as the plans that lead to it. To replay them, paste what is printed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass, replace
from itertools import chain

import pytest

from kvcache_service.core.events import BlockRemoved, BlocksStored, CopyDropped, Event
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.plan import Grants, Plan
from tests.kvcache_service.core.list_blocks import Prefix, Setup, Told
from tests.kvcache_service.core.list_pool import ListPool, Outcome
from tests.kvcache_service.core.random_plans import RandomPlans

NUM_TRIES = 2000  # seeds behind a failing one, for fewer plans
IMPORTS = """\
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.plan import Admits, Commits, Declaration, Frees, Grows, Plan
from kvcache_service.core.request import Identity
from tests.kvcache_service.core.list_blocks import Setup
from tests.kvcache_service.core.test_against_lists import replay
"""


class Differs(Exception):
    """The last of these plans is the first after which the pool and the lists are not the same."""

    def __init__(self, setup: Setup, plans: Sequence[Plan], *, seed: int | None = None) -> None:
        super().__init__(setup, plans, seed)
        self.setup, self.plans, self.seed = setup, plans, seed

    def __str__(self) -> str:
        plans = "".join(f"    {written(plan)},\n" for plan in self.plans)
        call = f"replay(\n    {written(self.setup)},\n{plans})"
        return f"{self.__cause__!r}\nafter {len(self.plans)} plans of seed {self.seed}:\n\n{IMPORTS}\n{call}"


class Both:
    """A pool, and what it should be."""

    def __init__(self, setup: Setup) -> None:
        self.manager = KVCacheManager(**asdict(setup))
        self.lists = ListPool(setup)
        self._prefixes: dict[bytes | None, Prefix | None] = {None: None}  # by the key that stands for each
        self._keys: dict[Prefix | None, bytes | None] = {None: None}

    def plan(self, plan: Plan) -> None:
        """Raises AssertionError that names the first thing that is not the same."""
        grants, outcome = self.manager.plan_step(plan), self.lists.plan(plan)
        expected = {**outcome_of_lists(outcome), **state_of_lists(self.lists)}
        got = {**outcome_of_manager(grants), **state_of_manager(self.manager)}
        for what, value in expected.items():
            if got[what] != value:
                raise AssertionError(f"{what}: the pool has {written(got[what])}, the lists {written(value)}")
        self._compare_names()

    def _compare_names(self) -> None:
        """One key for one prefix, always."""
        for block_id, prefix in enumerate(self.lists.blocks.names):
            key = self.manager.pool.key(block_id)
            is_same = self._prefixes.setdefault(key, prefix) == prefix and self._keys.setdefault(prefix, key) == key
            if not is_same:
                raise AssertionError(f"name of block {block_id}: the pool has {key!r}, the lists {written(prefix)}")


def outcome_of_lists(outcome: Outcome) -> dict[str, object]:
    new_block_ids = outcome.new_block_ids
    return {
        "granted tokens": outcome.num_tokens,
        "new blocks": [len(new_block_ids.get(index, ())) for index in range(len(outcome.num_tokens))],
        "new block ids": [*chain.from_iterable(new_block_ids[index] for index in sorted(new_block_ids))],
        "preempted": outcome.preempted,
        "refused": outcome.refused,
        "admissions": outcome.admissions,
    }


def outcome_of_manager(grants: Grants) -> dict[str, object]:
    return {
        "granted tokens": list(grants.grow_num_tokens),
        "new blocks": list(grants.grow_num_new_blocks),
        "new block ids": list(grants.grow_new_block_ids),
        "preempted": list(grants.preempted_handles),
        "refused": list(grants.refused_handles),
        "admissions": [replace(admission, miss_reason=None) for admission in grants.admissions],
    }


def state_of_lists(pool: ListPool) -> dict[str, object]:
    blocks, is_named = pool.blocks, [name is not None for name in pool.blocks.names]
    num_free = len(blocks.free)
    return {
        "free order": blocks.free,
        "users": blocks.ref_cnt,
        "named": is_named,
        "committed": [named and block_id not in blocks.reserved for block_id, named in enumerate(is_named)],
        "tables": {handle: request.block_table for handle, request in pool.requests.items()},
        "epochs": {handle: request.epoch for handle, request in pool.requests.items()},
        "running": pool.running,
        "events": blocks.events,
        "statistics": [*zip(pool.num_tokens_asked, pool.num_tokens_found, strict=True)],
        "free, cached, held": [num_free, sum(map(is_named.__getitem__, blocks.free)), len(is_named) - 1 - num_free],
        "evicted": blocks.num_evicted,
    }


def state_of_manager(manager: KVCacheManager) -> dict[str, object]:
    pool, figures, block_ids = manager.pool, manager.figures, range(manager.pool.num_blocks)
    return {
        "free order": list(pool.free_queue),
        "users": [pool.ref_cnt(block_id) for block_id in block_ids],
        "named": [pool.key(block_id) is not None for block_id in block_ids],
        "committed": [pool.is_committed(block_id) for block_id in block_ids],
        "tables": {handle: request.block_table for handle, request in manager.requests.items()},
        "epochs": {handle: request.epoch for handle, request in manager.requests.items()},
        "running": list(manager.running),
        "events": [told(event) for event in manager.take_events()],
        "statistics": [
            (figures.num_query_tokens, figures.num_hit_tokens),
            (figures.num_preempted_query_tokens, figures.num_preempted_hit_tokens),
        ],
        "free, cached, held": [figures.num_free, figures.num_cached, figures.num_held],
        "evicted": figures.num_evicted_blocks,
    }


def told(event: Event) -> Told:
    match event:
        case BlocksStored():
            return Told("stored", event.block_ids, tuple(event.token_ids))
        case BlockRemoved():
            return Told("removed", (event.block_id,))
        case CopyDropped():
            return Told("copy_dropped", (event.block_id,))
    raise AssertionError(f"no plan can lead to {event}")


def written(value: object) -> str:
    """As Python, without the fields that are as usual."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(written(item) for item in value)}]"
    if is_dataclass(value):
        given = {field: getattr(value, field.name) for field in fields(value)}
        parts = [f"{field.name}={written(v)}" for field, v in given.items() if written(v) != written(usual(field))]
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value)


def usual(field: "Field[object]") -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def replay(setup: Setup, *plans: Plan) -> None:
    both = Both(setup)
    for plan in plans:
        both.plan(plan)


def compare(seed: int, num_plans: int) -> None:
    """Raises Differs."""
    random_plans, plans = RandomPlans(seed), []
    both = Both(random_plans.setup)
    for _ in range(num_plans):
        plans.append(random_plans.plan(both.lists))
        try:
            both.plan(plans[-1])
        except Exception as error:
            raise Differs(random_plans.setup, plans, seed=seed) from error


def shortest_difference(seeds: Iterable[int], num_plans: int) -> Differs | None:
    """Of these seeds."""
    found = None
    for seed in seeds:
        try:
            compare(seed, num_plans)
        except Differs as difference:
            found, num_plans = difference, len(difference.plans) - 1
    return found


def compare_all(num_seeds: int, num_plans: int) -> None:
    """Raises, at the first seed that differs, the shortest that it or one of the next leads to."""
    for seed in range(num_seeds):
        try:
            compare(seed, num_plans)
        except Differs:
            shortest = shortest_difference(range(seed, seed + NUM_TRIES), num_plans)
            assert shortest is not None, f"seed {seed} differs no more"
            raise shortest from shortest.__cause__


def test_a_pool_is_what_the_lists_say_after_every_one_of_a_few_plans():
    compare_all(2000, 12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pool_is_what_the_lists_say_after_every_one_of_many_plans():
    compare_all(10_000, 40)
