"""What each tenant uses of one pool, added up when somebody asks: a step pays nothing for it."""

from dataclasses import dataclass

from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.statistics import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One namespace in one pool; None is everything outside the namespaces."""

    namespace: bytes | None
    num_held: int  # blocks of its requests and pins, shared ones once
    num_cached: int  # free blocks that hold a prefix of it
    num_pinned: int  # the part of the held ones that its pins keep
    counts: TokenCounts  # at admissions


def tenant_figures(manager: KVCacheManager) -> list[TenantFigures]:
    """Of all who use something of the pool, or have looked up something."""
    held = _held_blocks(manager)
    counts = manager.statistics.by_namespace
    cached: dict[bytes | None, int] = {
        namespace: manager.pool.num_cached_of(namespace) for namespace in manager.pool.names.namespaces
    }
    cached[None] = manager.pool.num_cached - sum(cached.values())
    return [
        TenantFigures(
            namespace=namespace,
            num_held=len(held.get(namespace, ())),
            num_cached=cached.get(namespace, 0),
            num_pinned=manager.pins.num_pinned_of(namespace),
            counts=counts.get(namespace, TokenCounts()),
        )
        for namespace in sorted({*held, *counts, *(name for name, num in cached.items() if num)}, key=_order)
    ]


def _held_blocks(manager: KVCacheManager) -> dict[bytes | None, set[int]]:
    held: dict[bytes | None, set[int]] = {}
    for request in manager.running.values():
        held.setdefault(request.identity.extras.namespace, set()).update(request.block_table)
    for namespace, block_ids in manager.pins.kept():
        held.setdefault(namespace, set()).update(block_ids)
    return held


def _order(namespace: bytes | None) -> bytes:
    return namespace or b""
