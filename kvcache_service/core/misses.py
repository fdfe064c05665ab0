"""Why a lookup found no more. Asked at admissions and by Match; changes nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.request import Identity
from kvcache_service.core.statistics import MissReason

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager

# How much is tried to find a missing block among what others have; in another namespace it has another name.
MAX_NAMESPACES_TRIED = 16
MAX_HASHES_TRIED = 64


def miss_reason(
    manager: KVCacheManager, identity: Identity, *, token_ids: array[int], keys: Sequence[bytes], num_hits: int
) -> MissReason:
    """Why these known tokens found `num_hits` blocks and no more; `keys` reach to the missing one at least."""
    if not manager.is_caching or identity.is_bypassing_cache:
        return MissReason.BYPASSED
    if num_hits >= (len(token_ids) - 1) // manager.block_size:
        return MissReason.PARTIAL_BLOCK
    if manager.pool.cache.was_evicted(keys[num_hits]):
        return MissReason.EVICTED
    if _is_here_for_others(manager, identity.extras, token_ids=token_ids, index=num_hits):
        return MissReason.OTHER_NAMESPACE
    return MissReason.COLD


def _is_here_for_others(manager: KVCacheManager, extras: Extras, *, token_ids: array[int], index: int) -> bool:
    """Whether block `index` is cached outside the namespaces, without the salt, or for one of the last tenants."""
    if index < extras.namespace_block:
        return False  # a public block has the same name for all
    num_hashes = MAX_HASHES_TRIED
    known = token_ids[: (index + 1) * manager.block_size]
    for other in islice(_others(manager, extras), MAX_NAMESPACES_TRIED):
        if num_hashes <= index:
            return False
        num_hashes -= index + 1
        *_, key = manager.chain(other).keys(known)
        if manager.pool.is_key_committed(key):
            return True
    return False


def _others(manager: KVCacheManager, extras: Extras) -> Iterator[Extras]:
    """What the same tokens could hash under instead; nothing for a request outside the namespaces and without salt."""
    if extras.namespace is None and not extras.salt:
        return
    yield replace(extras, namespace=None, salt="")
    if extras.salt and extras.namespace is not None:
        yield replace(extras, salt="")
    for namespace in reversed(manager.statistics.by_namespace):
        if namespace is not None and namespace != extras.namespace:
            yield replace(extras, namespace=namespace, salt="")
