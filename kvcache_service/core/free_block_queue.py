"""The order in which free blocks are given out, least recently used first. Knows ids only."""

from collections.abc import Iterable, Iterator

from kvcache_service.core.block import NULL_BLOCK_ID


class FreeBlockQueue:
    """A ring of block ids, doubly linked through two columns; the null block closes it, and is never in it.

    Every operation on one block is O(1), also taking it out of the middle.
    """

    __slots__ = ("_next", "_previous", "_size")

    def __init__(self, num_blocks: int) -> None:
        """All blocks but the null block, ascending."""
        self._next = [*range(1, num_blocks), NULL_BLOCK_ID]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._size = num_blocks - 1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        block_id = self._next[NULL_BLOCK_ID]
        while block_id != NULL_BLOCK_ID:
            yield block_id
            block_id = self._next[block_id]

    def popleft(self) -> int:
        """Take the block at the head; the queue must not be empty."""
        block_id: int = self._next[NULL_BLOCK_ID]
        assert block_id != NULL_BLOCK_ID, "the free block queue is empty"
        self.remove(block_id)
        return block_id

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
