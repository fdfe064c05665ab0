"""What a pool promises at any time, compared with the model. `PoolMachine` adds what schedulers and others do."""

from array import array
from collections.abc import Callable

from hypothesis.stateful import RuleBasedStateMachine, invariant

from kvcache_service.core.block import hash_of
from kvcache_service.core.block_hash import Fingerprint, HashChain, root_hash
from kvcache_service.core.events import PinEnd, PinEnded
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.pins import Pin, PinName
from kvcache_service.core.pools import Pool, Pools
from tests.kvcache_service.core.pool_model import NAMESPACES, B, Content, Index, ModelRequest, Prefix, Worker, prefix_of


class PoolPromises(RuleBasedStateMachine):
    """The model of one pool, and its invariants."""

    pools: Pools
    pool: Pool

    def begin(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.fingerprint = Fingerprint(block_size=B)
        self.requests: dict[int, ModelRequest] = {}
        self.worker = Worker(num_blocks)
        self.index = Index()
        self.pins: dict[PinName, Pin] = {}
        self.fences: dict[str, set[int]] = {}
        self.num_erasures: dict[bytes | None, int] = {None: 0} | dict.fromkeys(NAMESPACES, 0)
        self.meaning: dict[bytes, Prefix] = {}
        self.parents: dict[bytes, bytes | None] = {}

    @property
    def manager(self) -> KVCacheManager:
        return self.pool.manager

    @property
    def running(self) -> list[ModelRequest]:
        return [request for request in self.requests.values() if request.table]

    @property
    def held(self) -> list[int]:
        """Every block as often as a table or a pin holds it."""
        tables = [block_id for request in self.running for block_id in request.table]
        return tables + [block_id for pin in self.pins.values() for block_id in pin.block_ids]

    @property
    def fenced(self) -> set[int]:
        return {block_id for block_ids in self.fences.values() for block_id in block_ids} - set(self.held)

    def keys_of(self, tokens: list[int], extras: Extras) -> list[bytes]:
        """The keys of the full blocks of a sequence; notes what they mean."""
        keys = list(HashChain(root_hash(self.fingerprint), B, extras).keys(array("I", tokens)))
        for index, key in enumerate(keys):
            prefix = prefix_of(extras, tokens[: (index + 1) * B])
            parent = keys[index - 1] if index else None
            assert self.meaning.setdefault(key, prefix) == prefix
            assert self.parents.setdefault(key, parent) == parent
        return keys

    def everything(self) -> tuple[object, ...]:
        """All that an op may change, for ops that may change nothing."""
        pool, blocks = self.manager.pool, range(self.num_blocks)
        return (
            list(pool.free_queue),
            [(pool.ref_cnt(block), pool.key(block), pool.is_committed(block), pool.parent(block)) for block in blocks],
            {key: list(pool.cache.copies(key)) for key in pool.cache},
            self.manager.figures,
            {handle: (request.epoch, request.block_table) for handle, request in self.manager.requests.items()},
            {name: self.manager.pins.get(name) for name in self.pins},
            pool.take_events(),
        )

    def changes_nothing(self, op: Callable[[], object]) -> None:
        """Do it once more."""
        self.hear()
        before = self.everything()
        op()
        assert self.everything() == before

    def hear(self) -> None:
        """Tell the index what happened; pins that gave way are those that would have ended first."""
        for event in self.manager.take_events():
            self.index.hear(event)
            if isinstance(event, PinEnded) and event.reason is PinEnd.GAVE_WAY:
                pin = self.pins.pop(PinName(event.namespace, event.pin_id))
                assert all(pin.expires_s <= other.expires_s for other in self.pins.values())

    @invariant()
    def promises(self) -> None:
        self.every_block_is_free_held_or_fenced()
        self.users_are_tables_and_pins()
        self.tables_are_what_the_scheduler_thinks()
        self.a_key_names_one_prefix_and_its_blocks_hold_it()
        self.what_can_be_found_is_closed_under_prefixes()
        self.names_know_their_place_and_whose_they_are()
        self.the_events_tell_what_is_committed_and_pinned()

    def every_block_is_free_held_or_fenced(self) -> None:
        pool, free, held = self.manager.pool, list(self.manager.pool.free_queue), self.held
        assert sorted({*free, *held, *self.fenced}) == list(range(1, self.num_blocks))
        assert len(free) + len(set(held)) + len(self.fenced) == self.num_blocks - 1
        figures = self.manager.figures
        assert (figures.num_free, figures.num_held, figures.num_fenced) == (len(free), len({*held}), len(self.fenced))
        assert figures.num_cached == sum(pool.key(block_id) is not None for block_id in free)

    def users_are_tables_and_pins(self) -> None:
        pool, held = self.manager.pool, self.held
        assert [pool.ref_cnt(block_id) for block_id in range(self.num_blocks)] == [
            held.count(block_id) for block_id in range(self.num_blocks)
        ]
        in_tables = {block_id for request in self.running for block_id in request.table}
        pinned = {block_id for pin in self.pins.values() for block_id in pin.block_ids}
        figures = self.manager.figures
        assert (figures.num_pinned, figures.num_held_by_pins_only) == (len(pinned), len(pinned - in_tables))

    def tables_are_what_the_scheduler_thinks(self) -> None:
        tables = {handle: self.manager.block_table(handle) for handle in self.manager.requests}
        assert tables == {request.handle: request.table for request in self.requests.values()}
        assert {handle for handle, table in tables.items() if table} == self.manager.running.keys()

    def a_key_names_one_prefix_and_its_blocks_hold_it(self) -> None:
        """And nothing that was cached before its namespace was erased."""
        pool = self.manager.pool
        for key in pool.cache:
            prefix = self.meaning[key]
            slots = [
                Content(Prefix(prefix.tokens[:end], prefix.namespace, prefix.salt), self.num_erasures[prefix.namespace])
                for end in range(len(prefix.tokens) - B + 1, len(prefix.tokens) + 1)
            ]
            for block_id in pool.cache.copies(key):
                assert pool.key(block_id) == key
                assert self.worker.content[block_id] == slots
                assert not pool.is_committed(block_id) or self.worker.written[block_id] == slots

    def what_can_be_found_is_closed_under_prefixes(self) -> None:
        pool = self.manager.pool
        for is_there in (pool.cache.__contains__, pool.is_key_committed):
            found = [key for key in pool.cache if is_there(key)]
            parents = [parent for key in found if (parent := self.parents[key]) is not None]
            assert all(is_there(parent) for parent in parents)

    def names_know_their_place_and_whose_they_are(self) -> None:
        pool = self.manager.pool
        named = [block_id for block_id in range(self.num_blocks) if pool.key(block_id) is not None]
        for block_id in named:
            key = pool.key(block_id)
            assert key is not None
            prefix = self.meaning[key]
            facts = (pool.parent(block_id), pool.namespace(block_id), pool.depth(block_id))
            assert facts == (self.parents[key], prefix.namespace, len(prefix.tokens) // B - 1)
        free = [block_id for block_id in named if block_id in set(pool.free_queue)]
        for namespace in NAMESPACES:
            assert pool.num_cached_of(namespace) == sum(pool.namespace(block_id) == namespace for block_id in free)

    def the_events_tell_what_is_committed_and_pinned(self) -> None:
        self.hear()
        pool = self.manager.pool
        copies = {hash_of(key): set(pool.committed_copies(key)) for key in pool.cache}
        assert self.index.block_ids == {block_hash: block_ids for block_hash, block_ids in copies.items() if block_ids}
        assert self.index.pins.keys() == self.pins.keys()
        assert {name: self.manager.pins.get(name) for name in self.pins} == self.pins
