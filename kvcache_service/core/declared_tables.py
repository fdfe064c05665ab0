"""Takes over the tables that a scheduler says are in use, when it opens a pool again or opens one that is new here.

A declared block is named only for the token ids declared with it, at positions that acknowledged steps have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcache_service.core.errors import BadTable
from kvcache_service.core.plan import DeclaredTable
from kvcache_service.core.request import Request

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager

WITHDRAW_ALL = 0  # every plan has a higher number


def adopt(manager: KVCacheManager, tables: Sequence[DeclaredTable]) -> None:
    """Make the declared requests the only ones; check first, then change."""
    requests = [_request(manager, table) for table in tables]
    _check_shared(manager, requests)
    manager.publication.fail(WITHDRAW_ALL)
    for request in requests:
        manager.pool.touch(request.block_table)
    for request in list(manager.running.values()):
        manager.release(request)
    manager.requests = {request.handle: request for request in requests}
    manager.running = {request.handle: request for request in requests if request.block_table}
    _rename(manager, requests)


def _request(manager: KVCacheManager, table: DeclaredTable) -> Request:
    """The declared request with its table; raises BadTable if the table cannot be."""
    _check_alone(manager, table)
    request = manager.new_request(table.handle, table.token_ids, epoch=table.epoch, identity=table.identity)
    request.block_table = list(table.block_ids)
    request.num_slots = len(request.block_table) * manager.block_size
    request.num_computed_tokens = table.num_computed_tokens
    request.num_acked_tokens = table.num_acked_tokens
    held = manager.running.get(table.handle)
    request.is_muted = held is not None and held.is_muted and held.epoch == table.epoch
    return request


def _check_alone(manager: KVCacheManager, table: DeclaredTable) -> None:
    name, block_ids = f"the table of request {table.handle}", table.block_ids
    strange = [block_id for block_id in block_ids if not 0 < block_id < manager.pool.num_blocks]
    if strange:
        raise BadTable(f"{name} holds block {strange[0]}; the pool has 1 to {manager.pool.num_blocks - 1}")
    if len(set(block_ids)) != len(block_ids):
        raise BadTable(f"{name} holds a block twice: {list(block_ids)}")
    computed, room = table.num_computed_tokens, len(block_ids) * manager.block_size
    if not (bool(block_ids) <= computed <= room and 0 <= table.num_acked_tokens <= computed):
        raise BadTable(
            f"{name} has room for {room} tokens, num_computed_tokens {computed} and num_acked_tokens "
            f"{table.num_acked_tokens}; they must not grow in this order"
        )


def _check_shared(manager: KVCacheManager, requests: Sequence[Request]) -> None:
    """A block may be in two tables only if it holds the same full block of the same prefix."""
    handles: set[int] = set()
    held: dict[int, tuple[int, bytes | None]] = {}
    for request in requests:
        if request.handle in handles:
            raise BadTable(f"request {request.handle} is declared twice")
        handles.add(request.handle)
        for index, block_id in enumerate(request.block_table):
            key = request.keys[index] if index < len(request.keys) else None
            other, other_key = held.setdefault(block_id, (request.handle, key))
            if other != request.handle and (key is None or key != other_key):
                raise BadTable(f"requests {other} and {request.handle} hold block {block_id} with different content")


def _rename(manager: KVCacheManager, requests: Sequence[Request]) -> None:
    """Drop the keys that the tables contradict, and what lies behind; name what acknowledged steps have written."""
    pool, is_contradicted = manager.pool, False
    for request in requests:
        for index, block_id in enumerate(request.block_table):
            key = request.keys[index] if index < len(request.keys) else None
            if pool.key(block_id) not in (None, key):
                pool.disown(block_id)
                is_contradicted = True
    for request in requests:
        _count_named(manager, request)
        manager.publication.commit(request)
    if is_contradicted:
        pool.disown_orphans()
        manager.pins.end_lost()
    for request in requests:
        _count_named(manager, request)


def _count_named(manager: KVCacheManager, request: Request) -> None:
    """Leading blocks of the table that are named already, here or through another table."""
    request.num_named_blocks = 0
    for block_id in request.block_table:
        if manager.pool.key(block_id) is None:
            break
        request.num_named_blocks += 1
