"""Which blocks readers outside the step order still read. Knows neither users nor names."""

from collections.abc import Iterable


class Fences:
    """A reader names its blocks when it begins, and itself when it is done; several may read the same block."""

    __slots__ = ("_block_ids", "_num_readers")

    def __init__(self) -> None:
        self._block_ids: dict[str, dict[int, None]] = {}  # by reader, in the order in which they were named
        self._num_readers: dict[int, int] = {}  # by block

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._num_readers

    def __bool__(self) -> bool:
        return bool(self._num_readers)

    def put(self, reader_id: str, block_ids: Iterable[int]) -> None:
        """The reader reads these blocks from now on, besides those that it named before."""
        read = self._block_ids.setdefault(reader_id, {})
        for block_id in block_ids:
            if block_id not in read:
                read[block_id] = None
                self._num_readers[block_id] = self._num_readers.get(block_id, 0) + 1

    def lift(self, reader_id: str) -> list[int]:
        """The reader is done; the blocks that nobody reads any more. None of an unknown reader."""
        unread = []
        for block_id in self._block_ids.pop(reader_id, {}):
            self._num_readers[block_id] -= 1
            if self._num_readers[block_id] == 0:
                del self._num_readers[block_id]
                unread.append(block_id)
        return unread
