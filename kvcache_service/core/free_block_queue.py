"""The order in which free blocks are given out, least recently used first. Knows ids only."""

from array import array
from collections.abc import Iterable, Iterator

from kvcache_service.core.block import NULL_BLOCK_ID


class FreeBlockQueue:
    """A ring of block ids, doubly linked through two columns; the null block closes it, and is never in it.

    Every operation on one block is O(1), also taking it out of the middle.
    """

    __slots__ = ("_next", "_previous", "_size")

    def __init__(self, num_blocks: int) -> None:
        """All blocks but the null block, ascending."""
        self._next = array("I", range(1, num_blocks))
        self._next.append(NULL_BLOCK_ID)
        self._previous = array("I", [num_blocks - 1])
        self._previous.extend(range(num_blocks - 1))
        self._size = num_blocks - 1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        block_id = self._next[NULL_BLOCK_ID]
        while block_id != NULL_BLOCK_ID:
            yield block_id
            block_id = self._next[block_id]

    def popleft(self, num_blocks: int) -> list[int]:
        """Take as many blocks at the head; the queue must have them."""
        assert num_blocks <= self._size, f"the free block queue has {self._size} blocks, not {num_blocks}"
        following, block_id, block_ids = self._next, self._next[NULL_BLOCK_ID], []
        for _ in range(num_blocks):
            block_ids.append(block_id)
            block_id = following[block_id]
        following[NULL_BLOCK_ID] = block_id
        self._previous[block_id] = NULL_BLOCK_ID
        self._size -= num_blocks
        return block_ids

    def remove(self, block_id: int) -> None:
        """Take a block out, wherever it is; it must be in the queue."""
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._size -= 1

    def append(self, block_id: int) -> None:
        """Put a block at the tail: it is given out last."""
        self._link(block_id, after=self._previous[NULL_BLOCK_ID])

    def prepend(self, block_ids: Iterable[int]) -> None:
        """Put blocks at the head as a batch, in the order given."""
        after = NULL_BLOCK_ID
        for block_id in block_ids:
            self._link(block_id, after=after)
            after = block_id

    def _link(self, block_id: int, *, after: int) -> None:
        before, behind = after, self._next[after]
        self._next[before] = self._previous[behind] = block_id
        self._previous[block_id], self._next[block_id] = before, behind
        self._size += 1
