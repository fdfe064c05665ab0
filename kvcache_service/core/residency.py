"""What is cached in a pool, told as if it had just been stored: for an index that starts anew."""

from collections.abc import Container, Iterable, Iterator

from kvcache_service.core.block import group_of, hash_of
from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.events import BlocksStored


def stored_runs(pool: BlockPool, keys: Iterable[bytes]) -> Iterator[BlocksStored]:
    """The committed ones of these keys; those that follow one another in a sequence, and here, are one run.

    The token ids are not known any more.
    """
    run: list[bytes] = []
    block_ids: list[int] = []
    parent: bytes | None = None
    for key in keys:
        copies = pool.committed_copies(key)
        if not copies:
            continue
        if run and pool.parent(copies[0]) != run[-1]:
            yield _stored(run, block_ids, parent)
            run, block_ids = [], []
        if not run:
            parent = pool.parent(copies[0])
        run.append(key)
        block_ids.append(copies[0])
    if run:
        yield _stored(run, block_ids, parent)


def behind_their_parents(pool: BlockPool, keys: Iterable[bytes]) -> Iterator[bytes]:
    """These keys and those before them in their sequences, each once and before its children.

    The pool may change while somebody takes one after the other.
    """
    told: set[bytes] = set()
    for key in keys:
        path = list(_path(pool, key, told))
        told.update(path)
        yield from reversed(path)


def _path(pool: BlockPool, key: bytes | None, told: Container[bytes]) -> Iterator[bytes]:
    """A key that is cached and those before it in its sequence, back to one that was told."""
    while key is not None and key not in told and (block_id := pool.cache.find(key)) is not None:
        yield key
        key = pool.parent(block_id)


def _stored(keys: list[bytes], block_ids: list[int], parent: bytes | None) -> BlocksStored:
    return BlocksStored(
        block_hashes=tuple(hash_of(key) for key in keys),
        parent_hash=hash_of(parent) if parent is not None else None,
        token_ids=(),
        block_ids=tuple(block_ids),
        group_index=group_of(keys[0]),
    )
