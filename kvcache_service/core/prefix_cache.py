"""Which blocks hold which content: block key -> blocks, first inserted first. Knows neither requests nor users."""

from collections.abc import Iterable, Iterator, Sequence

NUM_REMEMBERED_EVICTIONS = 4096  # how far back "it was here and had to go" can be told from "it was never here"


class PrefixCache:
    """Several blocks may hold the same content; nothing is merged, because block tables are append-only."""

    __slots__ = ("_evicted", "_first", "_others")

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._others: dict[bytes, list[int]] = {}  # later copies, only where there are any
        self._evicted: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, key: bytes) -> bool:
        return key in self._first

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._first)

    def find(self, key: bytes) -> int | None:
        """The first inserted block with this content."""
        return self._first.get(key)

    def copies(self, key: bytes) -> Sequence[int]:
        """Every block with this content, first inserted first."""
        first = self._first.get(key)
        return () if first is None else (first, *self._others.get(key, ()))

    def longest_run(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the leading keys, up to the first that nobody holds."""
        block_ids = []
        find = self._first.get
        for key in keys:
            block_id = find(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def insert(self, key: bytes, block_id: int) -> None:
        """One more block holds this content."""
        if key in self._first:
            self._others.setdefault(key, []).append(block_id)
        else:
            self._first[key] = block_id

    def remove(self, key: bytes, block_id: int) -> None:
        """This block no longer holds this content; it must have."""
        others = self._others.get(key)
        if self._first[key] != block_id:
            assert others is not None, f"block {block_id} does not hold {key.hex()}"
            others.remove(block_id)
        elif others:
            self._first[key] = others.pop(0)
        else:
            del self._first[key]
        if not others:
            self._others.pop(key, None)

    def remember_evicted(self, key: bytes) -> None:
        """Keep in mind, for a while, that this content was here."""
        self._evicted[key] = None
        if len(self._evicted) > NUM_REMEMBERED_EVICTIONS:
            del self._evicted[next(iter(self._evicted))]

    def was_evicted(self, key: bytes) -> bool:
        """Whether this content was here not long ago."""
        return key in self._evicted

    def clear(self) -> None:
        """Forget everything."""
        self._first.clear()
        self._others.clear()
        self._evicted.clear()
