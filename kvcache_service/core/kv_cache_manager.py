"""The requests of one pool: their token ids, block tables and prefix hits. Decides who fits; knows no policy."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from kvcache_service.core import declared_tables, plan_check, plan_step
from kvcache_service.core.block import num_blocks_for
from kvcache_service.core.block_hash import HashChain
from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.errors import BadPlan, NothingToAllocate, UnknownRequest
from kvcache_service.core.events import Event
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.plan import (
    Admission,
    AdmissionStatus,
    DeclaredTable,
    Figures,
    Grants,
    Growth,
    MissReason,
    Plan,
)
from kvcache_service.core.publication import Publication
from kvcache_service.core.request import ANONYMOUS, Identity, Request
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
    ) -> None:
        self.step = 1
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, caching=caching)
        self.publication = Publication(self.pool, block_size)
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}  # those that hold blocks
        self._root = root
        self._caching = caching
        self._full_sequence_gate = full_sequence_gate
        self._max_model_len = max_model_len
        self._statistics = PrefixStatistics()

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
        chain = self._chain(identity.extras) if self._caching else None
        return Request(handle, token_ids, epoch=epoch, identity=identity, chain=chain)

    def lookup(
        self, token_ids: Sequence[int], *, extras: Extras = NO_EXTRAS, is_committed_only: bool = False
    ) -> list[int]:
        """The blocks of the longest cached prefix of a sequence, without touching them.

        One token at least is left to compute, because its logits are needed.
        """
        if not self._caching:
            return []
        usable = array("I", token_ids[: max(0, len(token_ids) - 1)])
        keys = self._chain(extras).keys(usable)
        committed = takewhile(self.pool.is_key_committed, keys)
        return self.pool.cache.longest_run(committed if is_committed_only else keys)

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
        fit now, even if only a first chunk is taken.
        """
        request = self._waiting(handle)
        known = len(request.token_ids) if num_known_tokens is None else num_known_tokens
        hits = self.hits(request, known)
        num_cached = len(hits) * self.block_size
        granted = known - num_cached if num_tokens is None else min(known - num_cached, num_tokens)
        if granted <= 0:
            raise NothingToAllocate(f"request {handle} was to be admitted with {granted} tokens")
        num_new_blocks = self._num_blocks(num_cached + granted + num_lookahead_tokens) - len(hits)
        in_the_end = self._num_blocks(known) - len(hits) if self._full_sequence_gate else 0
        needed = max(num_new_blocks, in_the_end) + self.pool.num_idle(hits) + num_watermark_blocks
        status, reason = AdmissionStatus.REFUSED, self._miss_reason(request, known, len(hits))
        num_evicted_before = self.pool.num_evicted
        if needed <= self.pool.num_free:
            status = AdmissionStatus.ADMITTED
            self._start(request, hits, num_new_blocks, num_computed_tokens=num_cached + granted)
            self._count(request, known, num_cached)
        request.num_refusals = 0 if status is AdmissionStatus.ADMITTED else request.num_refusals + 1
        return Admission(
            handle=handle,
            status=status,
            num_cached_tokens=num_cached,
            num_granted_tokens=granted if status is AdmissionStatus.ADMITTED else 0,
            block_ids=tuple(request.block_table),
            num_known_tokens=known,
            num_evicted_blocks=self.pool.num_evicted - num_evicted_before,
            miss_reason=reason,
            num_refusals=request.num_refusals,
        )

    def hits(self, request: Request, num_known_tokens: int) -> list[int]:
        """The blocks of the longest cached prefix that this request may start behind."""
        if request.identity.is_bypassing_cache:
            return []
        limit = max(0, num_known_tokens - 1) // self.block_size
        return self.pool.cache.longest_run(islice(request.keys, limit))

    def grow(
        self, handle: int, num_tokens: int, *, victims: Iterable[int] = (), num_lookahead_tokens: int = 0
    ) -> Growth:
        """Advance a running request by `num_tokens`, with new blocks where it has no room.

        While blocks are missing, the next victim is preempted, until it fits or is itself the victim. Without victims
        a refusal changes nothing. The victims are consumed as they are looked at, so that one iterator may serve the
        grows of a whole plan.
        """
        if num_tokens <= 0:
            raise NothingToAllocate(f"request {handle} was to grow by {num_tokens} tokens")
        request = self.running.get(handle)
        if request is None:
            raise UnknownRequest(f"request {handle} holds no blocks; was it freed or preempted?")
        num_computed_tokens = request.num_computed_tokens + num_tokens
        missing = self._num_blocks(num_computed_tokens + num_lookahead_tokens) - len(request.block_table)
        preempted: list[int] = []
        if missing > self.pool.num_free:
            preempted = self._make_room(request, missing, iter(victims))
            if missing > self.pool.num_free or request.handle not in self.running:
                return Growth(None, preempted)
        new_block_ids = self.pool.allocate(max(0, missing))
        self._extend_table(request, new_block_ids)
        start, request.num_computed_tokens = request.num_computed_tokens, num_computed_tokens
        self.publication.reserve(request, self.step, start=start)
        return Growth(new_block_ids, preempted)

    def commit(self, handle: int, num_acked_tokens: int, new_token_ids: Iterable[int] = ()) -> None:
        """Ids became known; of a running request, name the full blocks that acknowledged steps have written."""
        request = self.request(handle)
        request.add_tokens(array("I", new_token_ids))
        if request.block_table:
            request.num_acked_tokens = max(request.num_acked_tokens, num_acked_tokens)
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
        """Forget every prefix, if no request holds a block; else change nothing and return False."""
        return self.pool.reset()

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
        pool, counted = self.pool, self._statistics
        return Figures(
            num_blocks=pool.num_blocks,
            num_free=pool.num_free,
            num_cached=pool.num_cached,
            num_held=pool.num_blocks - 1 - pool.num_free,
            num_query_tokens=counted.num_query_tokens,
            num_hit_tokens=counted.num_hit_tokens,
            num_preempted_query_tokens=counted.num_preempted_query_tokens,
            num_preempted_hit_tokens=counted.num_preempted_hit_tokens,
            num_evicted_blocks=pool.num_evicted,
        )

    def _waiting(self, handle: int) -> Request:
        request = self.request(handle)
        assert not request.block_table, f"request {handle} runs already; grow it"
        return request

    def _num_blocks(self, num_tokens: int) -> int:
        limit = num_tokens if self._max_model_len is None else min(num_tokens, self._max_model_len)
        return num_blocks_for(limit, self.block_size)

    def _start(self, request: Request, hits: list[int], num_new_blocks: int, *, num_computed_tokens: int) -> None:
        self.pool.touch(hits)
        self._extend_table(request, hits + self.pool.allocate(num_new_blocks))
        self.running[request.handle] = request
        request.num_named_blocks = len(hits)
        request.num_computed_tokens = num_computed_tokens
        self.publication.reserve(request, self.step, start=len(hits) * self.block_size)

    def _extend_table(self, request: Request, block_ids: list[int]) -> None:
        request.block_table.extend(block_ids)
        request.num_slots = len(request.block_table) * self.block_size

    def _make_room(self, request: Request, num_blocks: int, victims: Iterator[int]) -> list[int]:
        """Preempt victims until `num_blocks` are free or `request` itself was the victim."""
        preempted = []
        while num_blocks > self.pool.num_free and request.handle in self.running:
            victim = next((self.running[handle] for handle in victims if handle in self.running), None)
            if victim is None:
                break
            self.publication.withdraw(victim, self.step)
            self.release(victim)
            preempted.append(victim.handle)
        return preempted

    def _count(self, request: Request, num_known_tokens: int, num_cached_tokens: int) -> None:
        """Requests that read nothing are not counted."""
        if self._caching and not request.identity.is_bypassing_cache:
            self._statistics.count(num_known_tokens, num_cached_tokens, was_preempted=request.epoch > 0)

    def _miss_reason(self, request: Request, num_known_tokens: int, num_hits: int) -> MissReason:
        if not self._caching or request.identity.is_bypassing_cache:
            return MissReason.DISABLED
        if num_hits == (num_known_tokens - 1) // self.block_size:
            return MissReason.PARTIAL_BLOCK
        if num_hits < len(request.keys) and self.pool.cache.was_evicted(request.keys[num_hits]):
            return MissReason.EVICTED
        return MissReason.SALT if num_hits == 0 and request.identity.extras.salt else MissReason.COLD

    def _chain(self, extras: Extras) -> HashChain:
        return HashChain(self._root, self.block_size, extras)
