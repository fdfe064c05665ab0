"""Which blocks are free, how many users each has, and what content each is named for. Knows no requests."""

from collections.abc import Sequence

from kvcache_service.core.block import group_of, hash_of
from kvcache_service.core.errors import OutOfBlocks
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, CopyDropped, Event
from kvcache_service.core.free_block_queue import FreeBlockQueue
from kvcache_service.core.prefix_cache import PrefixCache


class BlockPool:
    """The blocks of one worker, as columns indexed by block id.

    A key is given to a block when it is reserved or committed; a reserved one can be found by later admissions, but
    only committed ones are told to anybody else. With caching off no block is ever named.
    """

    __slots__ = ("_caching", "_events", "_keys", "_ref_cnt", "_reserved", "cache", "free_queue", "num_blocks",
                 "num_cached", "num_evicted")  # fmt: skip

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.free_queue = FreeBlockQueue(num_blocks)
        self.cache = PrefixCache()
        self.num_cached = 0  # free blocks that are named
        self.num_evicted = 0
        self._caching = caching
        self._ref_cnt = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._reserved: dict[int, object] = {}  # block id -> the reservation it is under
        self._events: list[Event] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be given out, named ones included."""
        return len(self.free_queue)

    def ref_cnt(self, block_id: int) -> int:
        """How many tables hold the block."""
        return self._ref_cnt[block_id]

    def key(self, block_id: int) -> bytes | None:
        """What the block is named for."""
        return self._keys[block_id]

    def is_committed(self, block_id: int) -> bool:
        """Whether the block is named and an acknowledged step has written it."""
        return self._keys[block_id] is not None and block_id not in self._reserved

    def is_key_committed(self, key: bytes) -> bool:
        """Whether an acknowledged step has written any block with this content."""
        return bool(self.committed_copies(key))

    def committed_copies(self, key: bytes) -> list[int]:
        """The committed blocks with this content, first inserted first."""
        return [block_id for block_id in self.cache.copies(key) if block_id not in self._reserved]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take the least recently used free blocks, forgetting whatever prefix they held.

        All or nothing: raises OutOfBlocks, with the pool unchanged, when too few are free.
        """
        if num_blocks > self.num_free:
            raise OutOfBlocks(f"asked for {num_blocks} blocks, {self.num_free} are free")
        block_ids = [self.free_queue.popleft() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._evict(block_id)
            self._ref_cnt[block_id] = 1
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """One more user for each; a free block is no longer given out."""
        for block_id in block_ids:
            if self._ref_cnt[block_id] == 0:
                self.free_queue.remove(block_id)
                self.num_cached -= self._keys[block_id] is not None
            self._ref_cnt[block_id] += 1

    def num_idle(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks nobody uses, so that touching them takes them from the free ones."""
        return sum(self._ref_cnt[block_id] == 0 for block_id in block_ids)

    def free(self, block_ids: Sequence[int]) -> None:
        """One user less for each, in the order given.

        Of those that nobody uses now, the unnamed go to the head as a batch, the named to the tail one by one; with
        caching off all go to the tail.
        """
        unnamed = []
        for block_id in block_ids:
            self._ref_cnt[block_id] -= 1
            assert self._ref_cnt[block_id] >= 0, f"block {block_id} was freed more often than it was taken"
            if self._ref_cnt[block_id] > 0:
                continue
            if self._keys[block_id] is None and self._caching:
                unnamed.append(block_id)
            else:
                self.free_queue.append(block_id)
                self.num_cached += self._keys[block_id] is not None
        self.free_queue.prepend(unnamed)

    def reserve(self, block_id: int, key: bytes, reservation: object) -> None:
        """Name a block that a planned step will fill."""
        self._name(block_id, key)
        self._reserved[block_id] = reservation

    def is_under(self, reservation: object, block_id: int) -> bool:
        """Whether the block has been neither committed nor given out again since this reservation."""
        return self._reserved.get(block_id) is reservation

    def commit(self, block_id: int, key: bytes) -> None:
        """Name a block that an acknowledged step has filled; it is unnamed, or reserved under the same key."""
        if block_id in self._reserved:
            assert self._keys[block_id] == key, f"block {block_id} is reserved for other content"
            del self._reserved[block_id]
        else:
            self._name(block_id, key)

    def withdraw(self, block_id: int) -> None:
        """Unname a reserved block; nobody outside was told of it. A free one is given out next."""
        key = self._keys[block_id]
        assert key is not None, f"block {block_id} is not reserved"
        del self._reserved[block_id]
        self._unname(block_id, key)

    def disown(self, block_id: int) -> None:
        """Unname a block whose content turned out to be something else; it may be free, reserved or neither."""
        key = self._keys[block_id]
        if key is None:
            return
        if block_id in self._reserved:
            self.withdraw(block_id)
            return
        self._unname(block_id, key)
        self._tell_removed(block_id, key)

    def reset(self) -> bool:
        """Forget every prefix, if nobody uses a block; else change nothing and return False."""
        if self.num_free != self.num_blocks - 1:
            return False
        self.cache.clear()
        self._keys = [None] * self.num_blocks
        self._reserved.clear()
        self.num_cached = 0
        self.tell(AllBlocksCleared())
        return True

    def tell(self, event: Event) -> None:
        """Note a change for whoever keeps an index."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """What changed since the last time, in order."""
        events, self._events = self._events, []
        return events

    def _name(self, block_id: int, key: bytes) -> None:
        assert self._ref_cnt[block_id] > 0, f"block {block_id} is not in use"
        assert self._keys[block_id] is None, f"block {block_id} is already named"
        self._keys[block_id] = key
        self.cache.insert(key, block_id)

    def _evict(self, block_id: int) -> None:
        """Forget the prefix of a block that is leaving the free queue; a reservation dies here."""
        key = self._keys[block_id]
        if key is None:
            return
        self._keys[block_id] = None
        self.cache.remove(key, block_id)
        self.num_cached -= 1
        self.num_evicted += 1
        if key not in self.cache:
            self.cache.remember_evicted(key)
        if block_id in self._reserved:
            del self._reserved[block_id]
        else:
            self._tell_removed(block_id, key)

    def _unname(self, block_id: int, key: bytes) -> None:
        self._keys[block_id] = None
        self.cache.remove(key, block_id)
        if self._ref_cnt[block_id] == 0:
            self.num_cached -= 1
            self.free_queue.remove(block_id)
            self.free_queue.prepend([block_id])

    def _tell_removed(self, block_id: int, key: bytes) -> None:
        kind = CopyDropped if self.is_key_committed(key) else BlockRemoved
        self.tell(kind(block_hash=hash_of(key), block_id=block_id, group_index=group_of(key)))
