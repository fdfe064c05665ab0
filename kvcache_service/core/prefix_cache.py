"""Which blocks hold which content: block key -> blocks, first inserted first. Knows neither requests nor users."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

NUM_SHARDS = 256  # one per first byte of a key: so that no map is so large that rebuilding it could be felt
MIN_COMPACTED = 1024  # keys: a smaller shard takes little memory, whatever holes it has
NUM_REMEMBERED_EVICTIONS = 4096  # at least: how far back "it was here and had to go" is told from "it was never here"


class PrefixCache:
    """Several blocks may hold the same content; nothing is merged, because block tables are append-only."""

    __slots__ = ("_evicted", "_evicted_before", "_next_shard", "_num_inserted", "others", "shards")

    def __init__(self) -> None:
        # Open to loops that cannot afford a call per block: the first inserted block of each key, in the shard of the
        # key's first byte; and later copies, only where there are any.
        self.shards: list[dict[bytes, int]] = [{} for _ in range(NUM_SHARDS)]
        self.others: dict[bytes, list[int]] = {}
        self._next_shard = 0
        self._num_inserted = 0  # since a shard was compacted
        self._evicted: set[bytes] = set()
        self._evicted_before: set[bytes] = set()  # the older half of what is remembered

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __contains__(self, key: bytes) -> bool:
        return key in self.shards[key[0]]

    def __iter__(self) -> Iterator[bytes]:
        """The keys, in no order."""
        return chain.from_iterable(self.shards)

    def find(self, key: bytes) -> int | None:
        """The first inserted block with this content."""
        return self.shards[key[0]].get(key)

    def copies(self, key: bytes) -> Sequence[int]:
        """Every block with this content, first inserted first."""
        first = self.shards[key[0]].get(key)
        return () if first is None else (first, *self.others.get(key, ()))

    def insert(self, key: bytes, block_id: int) -> None:
        """One more block holds this content."""
        if self.shards[key[0]].setdefault(key, block_id) != block_id:
            self.others.setdefault(key, []).append(block_id)

    def remove(self, key: bytes, block_id: int) -> bool:
        """This block no longer holds this content; it must have. Whether it was the last."""
        shard, others = self.shards[key[0]], self.others.get(key)
        if others is None:
            held = shard.pop(key)
            assert held == block_id, f"block {block_id} does not hold {key.hex()}"
            return True
        if shard[key] == block_id:
            shard[key] = others.pop(0)
        else:
            others.remove(block_id)
        if not others:
            del self.others[key]
        return False

    def compact(self, num_inserted: int) -> None:
        """So many keys were inserted: rebuild a large shard now and then, for removed keys leave holes in it.

        In a turn through all shards about a third of the keys is inserted, so that holes are never many.
        """
        self._num_inserted += num_inserted
        while self._num_inserted > (limit := max(len(self.shards[self._next_shard]), MIN_COMPACTED) // 3):
            self._num_inserted -= limit
            if limit > MIN_COMPACTED // 3:
                self.shards[self._next_shard] = dict(self.shards[self._next_shard])
            self._next_shard = (self._next_shard + 1) % NUM_SHARDS

    def remember_evicted(self, keys: Iterable[bytes]) -> None:
        """Keep in mind, for a while, that these were here."""
        self._evicted.update(keys)
        if len(self._evicted) >= NUM_REMEMBERED_EVICTIONS:
            self._evicted, self._evicted_before = set(), self._evicted

    def was_evicted(self, key: bytes) -> bool:
        """Whether this content was here not long ago."""
        return key in self._evicted or key in self._evicted_before

    def forget_evictions(self) -> None:
        """Keep nothing in mind of what was here."""
        self._evicted = set()
        self._evicted_before = set()

    def clear(self) -> None:
        """Forget everything."""
        for shard in self.shards:
            shard.clear()
        self.others.clear()
        self.forget_evictions()
