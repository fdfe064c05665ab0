"""The requests of one pool: their token ids, block tables and prefix hits; what is pinned. Knows no policy."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from kvcache_service.core import admission, declared_tables, plan_check, plan_step, restore
from kvcache_service.core.block import num_blocks_for
from kvcache_service.core.block_hash import HashChain
from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.errors import BadPlan, NothingToAllocate, UnknownRequest
from kvcache_service.core.events import Event
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import MAX_PINNED_SHARE, PinName, Pins
from kvcache_service.core.plan import Admission, DeclaredTable, Erased, Figures, Grants, Growth, Plan
from kvcache_service.core.publication import Publication
from kvcache_service.core.request import ANONYMOUS, Identity, Request
from kvcache_service.core.restore import Opening, PoolRecord
from kvcache_service.core.statistics import PrefixStatistics

ZERO_ROOT = bytes(16)


class KVCacheManager:
    """One full-attention group of one worker.

    Reservations belong to the plan whose number is `step`; `plan_step` sets it, a caller of the single operations may.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        root: bytes = ZERO_ROOT,
        caching: bool = True,
        full_sequence_gate: bool = True,
        max_model_len: int | None = None,
        max_pinned_share: float = MAX_PINNED_SHARE,
    ) -> None:
        self.step = 1
        self.block_size = block_size
        self.is_caching = caching
        self.has_full_sequence_gate = full_sequence_gate
        self.pool = BlockPool(num_blocks, caching=caching)
        self.pins = Pins(self.pool, max_pinned_share)
        self.publication = Publication(self.pool, block_size)
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}  # those that hold blocks
        self.statistics = PrefixStatistics()
        self._root = root
        self._max_model_len = max_model_len

    def plan_step(self, plan: Plan) -> Grants:
        """Apply the ops of a plan in their order. Raises BadPlan, with nothing changed, if they contradict the pool."""
        plan_check.check(self, plan)
        self.step = plan.step
        return plan_step.apply(self, plan)

    def adopt(self, tables: Sequence[DeclaredTable]) -> None:
        """Make these the only requests. Raises BadTable, with nothing changed, if they contradict each other.

        Unacknowledged reservations are withdrawn and committed keys kept, unless a declared table says that the block
        holds something else.
        """
        declared_tables.adopt(self, tables)

    def restore(self, record: PoolRecord, opening: Opening) -> int:
        """Bring back what was recorded of this pool, as far as it still holds; how many blocks."""
        return restore.restore(self, record, opening)

    def declare(
        self, handle: int, token_ids: Iterable[int], *, epoch: int = 0, identity: Identity = ANONYMOUS
    ) -> Request:
        """Make a request known; it holds no blocks yet."""
        if handle in self.requests:
            raise BadPlan(f"request {handle} was declared before; a handle is used once")
        request = self.new_request(handle, token_ids, epoch=epoch, identity=identity)
        self.requests[handle] = request
        return request

    def new_request(self, handle: int, token_ids: Iterable[int], *, epoch: int, identity: Identity) -> Request:
        """A request that hashes as this pool does, not yet known to it."""
        chain = self.chain(identity.extras) if self.is_caching else None
        return Request(handle, token_ids, epoch=epoch, identity=identity, chain=chain)

    def lookup(
        self, token_ids: Sequence[int], *, extras: Extras = NO_EXTRAS, is_committed_only: bool = False
    ) -> list[int]:
        """The blocks of the longest cached prefix of a sequence, without touching them.

        One token at least is left to compute, because its logits are needed.
        """
        if not self.is_caching:
            return []
        keys = self.chain(extras).keys(array("I", token_ids[: max(0, len(token_ids) - 1)]))
        committed = takewhile(self.pool.is_key_committed, keys)
        return self.pool.names.longest_run(committed if is_committed_only else keys)

    def chain(self, extras: Extras) -> HashChain:
        """What names the blocks of a sequence with these extras."""
        return HashChain(self._root, self.block_size, extras)

    def prefix_keys(self, token_ids: Sequence[int], extras: Extras = NO_EXTRAS) -> list[bytes]:
        """The keys of the full blocks of a sequence."""
        return list(self.chain(extras).keys(array("I", token_ids)))

    def num_committed(self, keys: Iterable[bytes]) -> int:
        """How many of the leading keys an acknowledged step has written here."""
        return len(self._committed(keys))

    def admit(
        self,
        handle: int,
        num_tokens: int | None = None,
        *,
        num_known_tokens: int | None = None,
        num_watermark_blocks: int = 0,
        num_lookahead_tokens: int = 0,
    ) -> Admission:
        """Give a waiting request the blocks of its cached prefix, and new ones for up to `num_tokens` of the rest.

        All or nothing: a refusal touches no block. With the full sequence gate on, everything that is not cached must
        fit now, even if only a first chunk is taken. If nobody runs, pins give way.
        """
        request = self.request(handle)
        return admission.admit(
            self,
            request,
            num_known_tokens=len(request.token_ids) if num_known_tokens is None else num_known_tokens,
            num_tokens=num_tokens,
            num_watermark_blocks=num_watermark_blocks,
            num_lookahead_tokens=num_lookahead_tokens,
        )

    def hits(self, request: Request, num_known_tokens: int) -> list[int]:
        """The blocks of the longest cached prefix that this request may start behind."""
        if request.identity.is_bypassing_cache:
            return []
        limit = max(0, num_known_tokens - 1) // self.block_size
        return self.pool.names.longest_run(islice(request.keys, limit))

    def grow(
        self, handle: int, num_tokens: int, *, victims: Iterable[int] = (), num_lookahead_tokens: int = 0
    ) -> Growth:
        """Advance a running request by `num_tokens`, with new blocks where it has no room.

        While blocks are missing, the next victim is preempted, until it fits or is itself the victim. If it runs alone
        pins give way first. Blocks that are only fenced are coming: if they are enough, nobody is preempted for more,
        and the grow is refused until they are there. Without victims and pins a refusal changes nothing. The victims
        are consumed as they are looked at, so that one iterator may serve the grows of a whole plan.
        """
        if num_tokens <= 0:
            raise NothingToAllocate(f"request {handle} was to grow by {num_tokens} tokens")
        request = self.running.get(handle)
        if request is None:
            raise UnknownRequest(f"request {handle} holds no blocks; was it freed or preempted?")
        num_computed_tokens = request.num_computed_tokens + num_tokens
        missing = self.num_blocks_for(num_computed_tokens + num_lookahead_tokens) - len(request.block_table)
        preempted: list[int] = []
        if missing > self.pool.num_free:
            preempted = self._make_room(request, missing, iter(victims))
            if missing > self.pool.num_free or request.handle not in self.running:
                return Growth(None, preempted)
        new_block_ids = self.pool.allocate(max(0, missing))
        self.extend_table(request, new_block_ids)
        start, request.num_computed_tokens = request.num_computed_tokens, num_computed_tokens
        self.publication.reserve(request, self.step, start=start)
        return Growth(new_block_ids, preempted)

    def commit(self, handle: int, num_acked_tokens: int, new_token_ids: Iterable[int] = ()) -> None:
        """Ids became known; of a running request, name the full blocks that acknowledged steps have written."""
        request = self.requests.get(handle) or self.request(handle)
        request.add_tokens(new_token_ids)
        if request.block_table:
            request.num_acked_tokens = max(request.num_acked_tokens, num_acked_tokens)
            if len(request.keys) > request.num_named_blocks:
                self.publication.commit(request)

    def ack(self, step: int) -> None:
        """What the plans up to this one reserved is written, also by requests that were freed meanwhile."""
        self.publication.ack(step)

    def fail(self, step: int) -> None:
        """What this plan and later ones reserved was never written."""
        self.publication.fail(step)
        for request in self.running.values():
            while request.num_named_blocks and self.pool.key(request.block_table[request.num_named_blocks - 1]) is None:
                request.num_named_blocks -= 1

    def free(self, handle: int, epoch: int) -> None:
        """Release the table of this epoch, the deepest block first. The second release of an epoch does nothing."""
        request = self.request(handle)
        if request.block_table and request.epoch == epoch:
            self.release(request)

    def release(self, request: Request) -> None:
        """Give back every block of a running request; its ids and keys stay, and its epoch is over."""
        del self.running[request.handle]
        self.pool.free(request.block_table[::-1])
        request.drop_table()

    def forget(self, handle: int) -> None:
        """Drop the record of a request that holds no blocks."""
        request = self.request(handle)
        assert not request.block_table, f"request {handle} holds {len(request.block_table)} blocks; free it first"
        del self.requests[handle]

    def reset_prefix_cache(self) -> bool:
        """Forget every prefix, if no request and no pin holds a block; else change nothing and return False."""
        return self.pool.reset()

    def check_pin(self, name: PinName, keys: Iterable[bytes]) -> int:
        """How many blocks a pin would keep. Raises PinQuotaExceeded if they are too many."""
        block_ids = self._committed(keys)
        self.pins.check(name, block_ids)
        return len(block_ids)

    def pin(self, name: PinName, keys: Iterable[bytes], *, expires_s: float) -> int:
        """Keep the committed blocks of the leading keys, in the place of what the pin of this name kept; how many.

        Raises PinQuotaExceeded, with nothing changed. If there are no such blocks, the pin of this name ends.
        """
        block_ids = self._committed(keys)
        if block_ids:
            self.pins.put(name, block_ids, expires_s=expires_s)
        else:
            self.pins.end(name)
        return len(block_ids)

    def unpin(self, name: PinName) -> bool:
        """End a pin before its time; false if there is none of this name."""
        return self.pins.end(name)

    def expire_pins(self, now_s: float) -> int:
        """End the pins whose time is over; how many."""
        return self.pins.expire(now_s)

    @property
    def next_pin_expiry_s(self) -> float | None:
        """When the next pin ends; None while there is none."""
        return self.pins.next_expiry_s

    def erase_namespace(self, namespace: bytes) -> Erased:
        """Forget everything that is cached in a namespace; its requests that run go on and publish nothing more."""
        muted = [
            request
            for request in self.running.values()
            if request.identity.extras.namespace == namespace and not request.is_muted
        ]
        for request in muted:
            request.is_muted = True
        return Erased(
            num_pins=self.pins.end_namespace(namespace),
            num_blocks=self.pool.erase(namespace),
            num_requests=len(muted),
        )

    def fence(self, reader_id: str, block_ids: Iterable[int]) -> None:
        """Somebody outside the step order reads these blocks from now on."""
        self.pool.fence(reader_id, block_ids)

    def unfence(self, reader_id: str) -> None:
        """The reader is done. The second time this does nothing."""
        self.pool.unfence(reader_id)

    def request(self, handle: int) -> Request:
        """A declared request."""
        request = self.requests.get(handle)
        if request is None:
            raise UnknownRequest(f"request {handle} is unknown; was it declared, or forgotten already?")
        return request

    def block_table(self, handle: int) -> list[int]:
        """The blocks of a request, in order; empty while it waits."""
        return list(self.request(handle).block_table)

    def num_common_prefix_blocks(self) -> int:
        """Leading blocks that every running request holds."""
        tables = [request.block_table for request in self.running.values()]
        columns = zip(*tables, strict=False)
        return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))

    def take_events(self) -> list[Event]:
        """What changed in the prefix cache since the last time, in order."""
        return self.pool.take_events()

    @property
    def figures(self) -> Figures:
        """How the pool is used now."""
        pool, counted = self.pool, self.statistics
        return Figures(
            num_blocks=pool.num_blocks,
            num_free=pool.num_free,
            num_cached=pool.num_cached,
            num_held=pool.num_held,
            num_fenced=pool.num_fenced,
            num_pinned=pool.num_pinned,
            num_held_by_pins_only=pool.num_held_by_pins_only,
            num_query_tokens=counted.num_query_tokens,
            num_hit_tokens=counted.num_hit_tokens,
            num_preempted_query_tokens=counted.num_preempted_query_tokens,
            num_preempted_hit_tokens=counted.num_preempted_hit_tokens,
            num_evicted_blocks=pool.num_evicted,
        )

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of this length takes; none beyond the model's longest."""
        limit = num_tokens if self._max_model_len is None else min(num_tokens, self._max_model_len)
        return num_blocks_for(limit, self.block_size)

    def extend_table(self, request: Request, block_ids: list[int]) -> None:
        """Append blocks to the table of a request."""
        request.block_table.extend(block_ids)
        request.num_slots = len(request.block_table) * self.block_size

    def _committed(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the leading keys that are committed."""
        block_ids = []
        for key in keys:
            copies = self.pool.committed_copies(key)
            if not copies:
                break
            block_ids.append(copies[0])
        return block_ids

    def _make_room(self, request: Request, num_blocks: int, victims: Iterator[int]) -> list[int]:
        """Preempt victims until `num_blocks` are free or `request` itself was the victim."""
        preempted: list[int] = []
        while num_blocks > self.pool.num_free + self.pool.num_fenced and request.handle in self.running:
            is_possible = num_blocks + len(request.block_table) < self.pool.num_blocks
            if len(self.running) == 1 and is_possible and self.pins.give_way():
                continue
            victim = next((self.running[handle] for handle in victims if handle in self.running), None)
            if victim is None:
                break
            self.publication.withdraw(victim, self.step)
            self.release(victim)
            preempted.append(victim.handle)
        return preempted
