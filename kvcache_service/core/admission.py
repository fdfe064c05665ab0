"""Who may start: the blocks of the cached prefix, new ones for the rest, or nothing at all. Knows no policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache_service.core.block import NULL_BLOCK_ID
from kvcache_service.core.errors import NothingToAllocate
from kvcache_service.core.misses import miss_reason
from kvcache_service.core.plan import Admission, AdmissionStatus
from kvcache_service.core.statistics import MissReason

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager
    from kvcache_service.core.request import Request


@dataclass(frozen=True, slots=True)
class _Lookup:
    """What the known tokens of a request found in the prefix cache."""

    request: Request
    num_known_tokens: int
    hits: list[int]


def admit(
    manager: KVCacheManager,
    request: Request,
    *,
    num_known_tokens: int,
    num_tokens: int | None,
    num_watermark_blocks: int,
    num_lookahead_tokens: int,
) -> Admission:
    """All or nothing: a refusal touches no block. Pins give way if nobody runs."""
    assert not request.block_table, f"request {request.handle} runs already; grow it"
    pool, known = manager.pool, num_known_tokens
    hits = manager.hits(request, known)
    lookup = _Lookup(request, known, hits)
    num_cached = len(hits) * manager.block_size
    granted = known - num_cached if num_tokens is None else min(known - num_cached, num_tokens)
    if granted <= 0:
        raise NothingToAllocate(f"request {request.handle} was to be admitted with {granted} tokens")
    num_new_blocks = manager.num_blocks_for(num_cached + granted + num_lookahead_tokens) - len(hits)
    in_the_end = manager.num_blocks_for(known) - len(hits) if manager.has_full_sequence_gate else 0
    num_blocks = max(num_new_blocks, in_the_end) + num_watermark_blocks
    num_evicted_before = pool.num_evicted
    is_admitted = _fits(manager, hits, num_blocks=num_blocks)
    request.num_refusals = 0 if is_admitted else request.num_refusals + 1
    reason = _reason(manager, lookup) if request.num_refusals < 2 else None  # of later refusals nobody asks
    if is_admitted:
        assert reason is not None, f"request {request.handle} is admitted after {request.num_refusals} refusals"
        _count(manager, lookup, reason=reason)
        _start(manager, lookup, num_new_blocks=num_new_blocks, num_computed_tokens=num_cached + granted)
    return Admission(
        handle=request.handle,
        status=AdmissionStatus.ADMITTED if is_admitted else AdmissionStatus.REFUSED,
        num_cached_tokens=num_cached,
        num_granted_tokens=granted if is_admitted else 0,
        block_ids=tuple(request.block_table),
        num_known_tokens=known,
        num_evicted_blocks=pool.num_evicted - num_evicted_before,
        miss_reason=reason,
        num_refusals=request.num_refusals,
    )


def _fits(manager: KVCacheManager, hits: list[int], *, num_blocks: int) -> bool:
    """Whether so many blocks are free besides the hit ones; hit blocks that nobody uses are among the free ones.

    If nobody runs, pins give way, but never for what would not fit into the empty pool.
    """
    pool = manager.pool
    while (num_missing := num_blocks + pool.num_idle(hits) - pool.num_free) > 0:
        is_coming = num_missing <= pool.num_fenced
        if manager.running or is_coming or num_blocks + len(hits) >= pool.num_blocks or not manager.pins.give_way():
            return False
    return True


def _start(manager: KVCacheManager, lookup: _Lookup, *, num_new_blocks: int, num_computed_tokens: int) -> None:
    request, hits = lookup.request, lookup.hits
    manager.pool.touch(hits)
    manager.extend_table(request, hits + manager.pool.allocate(num_new_blocks))
    manager.running[request.handle] = request
    request.num_named_blocks = len(hits)
    request.num_computed_tokens = num_computed_tokens
    manager.publication.reserve(request, manager.step, start=len(hits) * manager.block_size)


def _reason(manager: KVCacheManager, lookup: _Lookup) -> MissReason:
    request, token_ids = lookup.request, lookup.request.token_ids
    if lookup.num_known_tokens < len(token_ids):
        token_ids = token_ids[: lookup.num_known_tokens]
    return miss_reason(manager, request.identity, token_ids=token_ids, keys=request.keys, num_hits=len(lookup.hits))


def _count(manager: KVCacheManager, lookup: _Lookup, *, reason: MissReason) -> None:
    """Once per admission, never per retry; requests that read nothing are not counted."""
    was_preempted = lookup.request.epoch > 0
    if not was_preempted:
        manager.statistics.count_miss(reason, is_near=_is_near_miss(manager, lookup))
    if reason is not MissReason.BYPASSED:
        manager.statistics.count_admission(
            lookup.num_known_tokens,
            len(lookup.hits) * manager.block_size,
            was_preempted=was_preempted,
            namespace=lookup.request.identity.extras.namespace,
        )


def _is_near_miss(manager: KVCacheManager, lookup: _Lookup) -> bool:
    """Whether the block behind the hits begins like the one that was named there last, but is not cached itself."""
    request, hits = lookup.request, lookup.hits
    extras, num_hits = request.identity.extras, len(hits)
    if request.identity.is_bypassing_cache or (not hits and (extras.salt or extras.adapter is not None)):
        return False
    if num_hits < len(request.keys) and request.keys[num_hits] in manager.pool.cache:
        return False  # cached whole, but a token must be left to compute
    before = hits[-1] if hits else NULL_BLOCK_ID
    namespace = extras.namespace if num_hits >= extras.namespace_block else None
    return manager.pool.names.has_near_child(before, request.token_ids[num_hits * manager.block_size], namespace)
