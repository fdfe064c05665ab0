"""What each block is named for: its key, where it lies in its sequence, and whose namespace it is in.

Columns indexed by block id. Knows neither users nor the free queue.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcache_service.core.block import NULL_BLOCK_ID
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.namespaces import OUTSIDE, Namespaces
from kvcache_service.core.prefix_cache import PrefixCache


@dataclass(slots=True, kw_only=True)  # not frozen, which costs five times as much: a plan names many
class Run:
    """Blocks one behind another in one sequence, and what they are to be named for."""

    block_ids: Sequence[int]
    keys: Sequence[bytes]
    first_token_ids: Sequence[int]  # of each block
    parent: bytes | None = None  # key of the block before the first; None at the start of the sequence
    depth: int = 0  # index of the first in the sequence
    extras: Extras = NO_EXTRAS


class BlockNames:
    """The names of one pool's blocks, and the blocks of each name."""

    __slots__ = ("_children", "_depths", "_first_token_ids", "_parents", "cache", "keys", "namespace_of", "namespaces")

    def __init__(self, num_blocks: int) -> None:
        self.cache = PrefixCache()
        self.namespaces = Namespaces()
        self.keys: list[bytes | None] = [None] * num_blocks
        self.namespace_of = _zeros(num_blocks)  # numbers of `namespaces`
        self._parents: list[bytes | None] = [None] * num_blocks  # keys
        self._depths = _zeros(num_blocks)
        self._first_token_ids = _zeros(num_blocks)
        self._children = _zeros(num_blocks)  # the newest content behind each block; behind the null block, at a start

    def parent(self, block_id: int) -> bytes | None:
        """The key of the block before this one in its sequence; None if it is the first, or unnamed."""
        return self._parents[block_id]

    def depth(self, block_id: int) -> int:
        """The index of a named block in its sequence; 0 of an unnamed one."""
        return 0 if self.keys[block_id] is None else self._depths[block_id]

    def namespace(self, block_id: int) -> bytes | None:
        """Whose a block is; None if it is outside all namespaces, or unnamed."""
        return self.namespaces.name(self.namespace_of[block_id])

    def longest_run(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the leading keys, up to the first that nobody holds.

        Behind a block its child is tried before the map of all keys: it lies nearby in memory, the map all over it.
        Not where there are copies: a child that was given out and named anew need not be the first of them.
        """
        block_ids, block_id = [], NULL_BLOCK_ID
        children, held, find, others = self._children, self.keys, self.cache.find, self.cache.others
        for key in keys:
            block_id = children[block_id]
            if held[block_id] != key or key in others:
                found = find(key)
                if found is None:
                    break
                block_id = found
            block_ids.append(block_id)
        return block_ids

    def put(self, run: Run) -> None:
        """Name the blocks of a run; none of them is named."""
        before, parent, depth = self._before(run), run.parent, run.depth
        keys, parents, depths = self.keys, self._parents, self._depths
        tokens, children, shards = self._first_token_ids, self._children, self.cache.shards
        for block_id, key, token_id in zip(run.block_ids, run.keys, run.first_token_ids, strict=True):
            assert keys[block_id] is None, f"block {block_id} is already named"
            keys[block_id], parents[block_id], depths[block_id], tokens[block_id] = key, parent, depth, token_id
            if shards[key[0]].setdefault(key, block_id) != block_id:
                self.cache.insert(key, block_id)
            elif before is not None:
                children[before] = block_id
            before, parent, depth = block_id, key, depth + 1
        self.cache.compact(len(run.block_ids))
        if run.extras.namespace is not None:
            own = run.block_ids[max(0, run.extras.namespace_block - run.depth) :]
            self._put_in_namespace(own, run.extras.namespace)

    def restore(self, block_id: int, key: bytes, *, parent: bytes | None, depth: int, namespace: bytes | None) -> None:
        """Name a block whose tokens are not known any more."""
        assert self.keys[block_id] is None, f"block {block_id} is already named"
        self.keys[block_id], self._parents[block_id], self._depths[block_id] = key, parent, depth
        self.cache.insert(key, block_id)
        if namespace is not None:
            self._put_in_namespace([block_id], namespace)

    def drop(self, block_id: int) -> tuple[bytes, bool]:
        """Unname a named block: the key that it had, and whether no other block has it."""
        key = self.keys[block_id]
        assert key is not None, f"block {block_id} is not named"
        self.keys[block_id] = self._parents[block_id] = None
        number = self.namespace_of[block_id]
        if number:
            self.namespaces.drop(number)
            self.namespace_of[block_id] = OUTSIDE
        if key in self.cache.others:
            return key, self.cache.remove(key, block_id)
        held = self.cache.shards[key[0]].pop(key)
        assert held == block_id, f"block {held} has the key of block {block_id}"
        return key, True

    def of_namespace(self, namespace: bytes) -> list[int]:
        """The blocks named in a namespace, ascending."""
        number = self.namespaces.find(namespace)
        if number is None:
            return []
        block_ids, block_id = [], NULL_BLOCK_ID
        for _ in range(self.namespaces.num_named[number]):
            block_id = self.namespace_of.index(number, block_id + 1)
            block_ids.append(block_id)
        return block_ids

    def has_near_child(self, block_id: int, first_token_id: int, namespace: bytes | None) -> bool:
        """Whether the newest content behind this block begins with this token and is in this namespace.

        The null block stands for the start of a sequence without salt and adapter.
        """
        child = self._children[block_id]
        return (
            self.keys[child] is not None
            and self._parents[child] == self.keys[block_id]
            and self._first_token_ids[child] == first_token_id
            and self.namespace(child) == namespace
        )

    def clear(self) -> None:
        """Forget every name."""
        num_blocks = len(self.keys)
        self.cache.clear()
        self.namespaces = Namespaces()
        self.keys[:] = [None] * num_blocks
        self._parents[:] = [None] * num_blocks
        self.namespace_of[:] = _zeros(num_blocks)

    def _before(self, run: Run) -> int | None:
        """The block before a run; under a salt or an adapter the start has other siblings, and none is noted."""
        if run.parent is not None:
            return self.cache.find(run.parent)
        return NULL_BLOCK_ID if run.extras.salt == "" and run.extras.adapter is None else None

    def _put_in_namespace(self, block_ids: Sequence[int], namespace: bytes) -> None:
        if block_ids:
            number = self.namespaces.add(namespace, len(block_ids))
            for block_id in block_ids:
                self.namespace_of[block_id] = number


def _zeros(num_blocks: int) -> "array[int]":
    return array("I", bytes(4 * num_blocks))
