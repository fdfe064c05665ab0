"""Which blocks are free, held or fenced, how many users each has, and what content each is named for.

Knows no requests. free + held + fenced = all blocks but the null block; a cached block is a free one with a name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvcache_service.core.block_names import BlockNames, Run
from kvcache_service.core.errors import OutOfBlocks
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, CopyDropped, Event
from kvcache_service.core.fences import Fences
from kvcache_service.core.free_block_queue import FreeBlockQueue

if TYPE_CHECKING:
    from kvcache_service.core.restore import RecordedBlock


class BlockPool:
    """The blocks of one worker, as columns indexed by block id.

    A key is given to a block when it is reserved or committed; a reserved one can be found by later admissions, but
    only committed ones are told to anybody else. With caching off no block is ever named. What can be found is closed
    under prefixes: no block is named whose parent's key is not.
    """

    __slots__ = ("_caching", "_events", "_fenced", "_fences", "_keys", "_num_pins", "_ref_cnt", "_reserved", "cache",
                 "free_queue", "names", "num_blocks", "num_cached", "num_evicted", "num_held_by_pins_only")  # fmt: skip

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.free_queue = FreeBlockQueue(num_blocks)
        self.names = BlockNames(num_blocks)
        self.cache = self.names.cache
        self.num_cached = 0  # free blocks that are named
        self.num_evicted = 0
        self.num_held_by_pins_only = 0
        self._caching = caching
        self._ref_cnt = array("I", bytes(4 * num_blocks))  # tables and pins
        self._num_pins: dict[int, int] = {}  # by block; the part of its users that are pins
        self._keys = self.names.keys
        self._fences = Fences()
        self._fenced: dict[int, None] = {}  # blocks that nobody uses and somebody reads
        self._reserved: dict[int, object] = {}  # block id -> the reservation it is under
        self._events: list[Event] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be given out, named ones included."""
        return len(self.free_queue)

    @property
    def num_fenced(self) -> int:
        """Blocks that nobody uses and that are not free yet."""
        return len(self._fenced)

    @property
    def num_held(self) -> int:
        """Blocks that tables or pins hold."""
        return self.num_blocks - 1 - self.num_free - self.num_fenced

    @property
    def num_pinned(self) -> int:
        """Blocks that pins hold."""
        return len(self._num_pins)

    def ref_cnt(self, block_id: int) -> int:
        """How many tables and pins hold the block."""
        return self._ref_cnt[block_id]

    def key(self, block_id: int) -> bytes | None:
        """What the block is named for."""
        return self._keys[block_id]

    def num_pins(self, block_id: int) -> int:
        """How many of the users of the block are pins."""
        return self._num_pins.get(block_id, 0)

    def is_committed(self, block_id: int) -> bool:
        """Whether the block is named and an acknowledged step has written it."""
        return self._keys[block_id] is not None and block_id not in self._reserved

    def is_key_committed(self, key: bytes) -> bool:
        """Whether an acknowledged step has written any block with this content."""
        return bool(self.committed_copies(key))

    def committed_copies(self, key: bytes) -> list[int]:
        """The committed blocks with this content, first inserted first."""
        return [block_id for block_id in self.cache.copies(key) if block_id not in self._reserved]

    def num_cached_of(self, namespace: bytes) -> int:
        """Free blocks that are named in this namespace."""
        number = self.names.namespaces.find(namespace)
        return 0 if number is None else self.names.namespaces.num_cached[number]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take the least recently used free blocks, forgetting whatever prefix they held.

        All or nothing: raises OutOfBlocks, with the pool unchanged, when too few are free.
        """
        if num_blocks > len(self.free_queue):
            raise OutOfBlocks(f"asked for {num_blocks} blocks, {self.num_free} are free")
        block_ids, keys, ref_cnt = self.free_queue.popleft(num_blocks), self._keys, self._ref_cnt
        named = [block_id for block_id in block_ids if keys[block_id] is not None]
        if named:
            self._evict(named)
        for block_id in block_ids:
            ref_cnt[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more user for each; a free block is no longer given out."""
        for block_id in block_ids:
            ref_cnt = self._ref_cnt[block_id]
            if ref_cnt == 0:
                self._take(block_id)
            elif self._num_pins.get(block_id) == ref_cnt:
                self.num_held_by_pins_only -= 1
            self._ref_cnt[block_id] = ref_cnt + 1

    def num_idle(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks are free, so that touching them takes them from the free ones."""
        ref_cnt, fenced = self._ref_cnt, self._fenced
        num_unused = [ref_cnt[block_id] for block_id in block_ids].count(0)
        return num_unused - sum(block_id in fenced for block_id in block_ids) if fenced else num_unused

    def free(self, block_ids: Iterable[int]) -> None:
        """One user less for each, in the order given.

        Of those that nobody uses now, the unnamed go to the head as a batch, the named to the tail one by one; with
        caching off all go to the tail. Fenced ones wait until nobody reads them.
        """
        idle = []
        for block_id in block_ids:
            ref_cnt = self._ref_cnt[block_id] - 1
            assert ref_cnt >= 0, f"block {block_id} was freed more often than it was taken"
            self._ref_cnt[block_id] = ref_cnt
            if ref_cnt == 0:
                idle.append(block_id)
            elif self._num_pins.get(block_id) == ref_cnt:
                self.num_held_by_pins_only += 1
        if self._fences:
            self._fenced.update(dict.fromkeys(block_id for block_id in idle if block_id in self._fences))
            idle = [block_id for block_id in idle if block_id not in self._fences]
        self._put_back(idle)

    def pin(self, block_ids: Sequence[int]) -> None:
        """One more user for each, that is a pin."""
        self.touch(block_ids)
        for block_id in block_ids:
            num_pins = self._num_pins[block_id] = self._num_pins.get(block_id, 0) + 1
            self.num_held_by_pins_only += num_pins == self._ref_cnt[block_id]

    def unpin(self, block_ids: Sequence[int]) -> None:
        """One user less for each, that was a pin; in the order given."""
        for block_id in block_ids:
            num_pins = self._num_pins.pop(block_id)
            self.num_held_by_pins_only -= num_pins == self._ref_cnt[block_id]
            if num_pins > 1:
                self._num_pins[block_id] = num_pins - 1
        self.free(block_ids)

    def fence(self, reader_id: str, block_ids: Iterable[int]) -> None:
        """Somebody outside the step order reads these blocks; they are not given out until that is over."""
        block_ids = list(block_ids)
        self._fences.put(reader_id, block_ids)
        for block_id in block_ids:
            if self._ref_cnt[block_id] == 0 and block_id not in self._fenced:
                self._take(block_id)
                self._fenced[block_id] = None

    def unfence(self, reader_id: str) -> None:
        """The reader is done; the second time this does nothing.

        Blocks that nobody reads or uses any more become free. The free blocks of the prefixes that they lie behind
        count as used now, so that they are not given out before them.
        """
        idle = [block_id for block_id in self._fences.lift(reader_id) if block_id in self._fenced]
        again = self._free_ancestors(idle)
        for block_id in (*idle, *again):
            self._take(block_id)
        self._put_back(sorted([*idle, *again], key=self.names.depth, reverse=True))

    def reserve(self, run: Run, reservation: object) -> None:
        """Name blocks that a planned step will fill."""
        self._name(run)
        self._reserved.update(dict.fromkeys(run.block_ids, reservation))

    def is_under(self, reservation: object, block_id: int) -> bool:
        """Whether the block has been neither committed nor given out again since this reservation."""
        return self._reserved.get(block_id) is reservation

    def confirm(self, block_ids: Iterable[int]) -> None:
        """Reserved blocks are written: everybody may know."""
        for block_id in block_ids:
            del self._reserved[block_id]

    def commit(self, run: Run) -> None:
        """Name blocks that an acknowledged step has filled."""
        self._name(run)

    def is_blank(self, block_id: int) -> bool:
        """Whether the block is free and unnamed."""
        is_free = self._ref_cnt[block_id] == 0 and block_id not in self._fenced
        return is_free and self._keys[block_id] is None

    def restore(self, recorded: Sequence[RecordedBlock]) -> None:
        """Name blank blocks that are known to hold this content, parents before their children.

        The children are given out first, and all of them after the other free blocks.
        """
        for block in recorded:
            for block_id in block.block_ids:
                assert self.is_blank(block_id), f"block {block_id} is in use or named"
                self.names.restore(
                    block_id, block.key, parent=block.parent_key, depth=block.depth, namespace=block.namespace
                )
        for block in reversed(recorded):
            for block_id in reversed(block.block_ids):
                self.free_queue.remove(block_id)
                self._put_back([block_id])

    def parent(self, block_id: int) -> bytes | None:
        """The key of the block before this one in its sequence; None if it is the first, or unnamed."""
        return self.names.parent(block_id)

    def depth(self, block_id: int) -> int:
        """How many blocks lie before a named block in its sequence."""
        return self.names.depth(block_id)

    def namespace(self, block_id: int) -> bytes | None:
        """Whose a named block is; None if it is outside all namespaces."""
        return self.names.namespace(block_id)

    def withdraw(self, block_id: int) -> None:
        """Unname a reserved block; nobody outside was told of it. A free one is given out next."""
        del self._reserved[block_id]
        self._unname(block_id)

    def disown(self, block_id: int) -> None:
        """Unname a block whose content turned out to be something else; it may be free, reserved or neither."""
        if self._keys[block_id] is not None:
            key, is_gone = self._unname(block_id)
            self._tell_unnamed(block_id, key, is_gone=is_gone)

    def disown_orphans(self) -> None:
        """Unname every block whose parent cannot be found any more; looks at all blocks."""
        named = [block_id for block_id, key in enumerate(self._keys) if key is not None]
        for block_id in sorted(named, key=self.depth):
            parent = self.parent(block_id)
            if parent is not None and parent not in self.cache:
                self.disown(block_id)

    def erase(self, namespace: bytes) -> int:
        """Unname every block of a namespace; how many were committed."""
        block_ids = self.names.of_namespace(namespace)
        num_reserved = sum(block_id in self._reserved for block_id in block_ids)
        for block_id in reversed(block_ids):
            self.disown(block_id)
        self.cache.forget_evictions()
        return len(block_ids) - num_reserved

    def reset(self) -> bool:
        """Forget every prefix, if nobody uses a block; else change nothing and return False."""
        if self.num_free != self.num_blocks - 1:
            return False
        self.names.clear()
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

    def _name(self, run: Run) -> None:
        assert 0 not in map(self._ref_cnt.__getitem__, run.block_ids), f"{run.block_ids} are not all in use"
        self.names.put(run)

    def _take(self, block_id: int) -> None:
        """A block that nobody uses is in use again, or read: it is neither free nor fenced."""
        if block_id in self._fenced:
            del self._fenced[block_id]
            return
        self.free_queue.remove(block_id)
        self._count_cached(block_id, -1)

    def _put_back(self, block_ids: Iterable[int]) -> None:
        unnamed = []
        for block_id in block_ids:
            if self._keys[block_id] is None and self._caching:
                unnamed.append(block_id)
            else:
                self.free_queue.append(block_id)
                self._count_cached(block_id, 1)
        self.free_queue.prepend(unnamed)

    def _count_cached(self, block_id: int, change: int) -> None:
        if self._keys[block_id] is not None:
            self.num_cached += change
            number = self.names.namespace_of[block_id]
            if number:
                self.names.namespaces.num_cached[number] += change

    def _evict(self, block_ids: Sequence[int]) -> None:
        """Forget the prefixes of blocks that have left the free queue; a reservation dies here."""
        names, reserved, events = self.names, self._reserved, self._events
        numbers, num_cached = names.namespace_of, names.namespaces.num_cached
        self.num_evicted += len(block_ids)
        self.num_cached -= len(block_ids)
        gone = []
        for block_id in block_ids:
            number = numbers[block_id]
            if number:
                num_cached[number] -= 1
            key, is_gone = names.drop(block_id)
            if is_gone:
                gone.append(key)
            if is_gone and block_id not in reserved:
                events.append(BlockRemoved(key, block_id))
            else:
                self._tell_unnamed(block_id, key, is_gone=is_gone)
            if self._fenced:
                self._unname_fenced_behind(key)
        self.cache.remember_evicted(gone)

    def _unname(self, block_id: int) -> tuple[bytes, bool]:
        """Forget the name of a block; a free one is given out next. See BlockNames.drop."""
        if not self._ref_cnt[block_id] and block_id not in self._fenced:
            self._count_cached(block_id, -1)
            self.free_queue.remove(block_id)
            self.free_queue.prepend([block_id])
        return self.names.drop(block_id)

    def _unname_fenced_behind(self, key: bytes) -> None:
        """A copy of this key went: nothing stays named whose parent did not, nor committed whose parent is not.

        Others are given out before their parents; a fenced block can outstay its parent.
        """
        is_found, is_committed = key in self.cache, self.is_key_committed(key)
        for block_id in [block_id for block_id in self._fenced if self.names.parent(block_id) == key]:
            if not (is_committed if self.is_committed(block_id) else is_found):
                child, is_gone = self.names.drop(block_id)
                self._tell_unnamed(block_id, child, is_gone=is_gone)
                self._unname_fenced_behind(child)

    def _free_ancestors(self, block_ids: Iterable[int]) -> list[int]:
        """For every block before one of these in its sequence: a free block with its content, if there is one."""
        found: list[int] = []
        seen: set[bytes] = set()
        for block_id in block_ids:
            parent = self.names.parent(block_id)
            while parent is not None and parent not in seen:
                seen.add(parent)
                copies = self.cache.copies(parent)
                if any(self._ref_cnt[copy] for copy in copies):
                    break  # in use, as then all before it are: they become free later
                found += [copy for copy in copies if copy not in self._fenced][:1]
                parent = self.names.parent(copies[0])
        return found

    def _tell_unnamed(self, block_id: int, key: bytes, *, is_gone: bool) -> None:
        """Nobody was told of a reserved block, so nobody is told that it is gone."""
        if block_id in self._reserved:
            del self._reserved[block_id]
            return
        kind = BlockRemoved if is_gone or not self.is_key_committed(key) else CopyDropped
        self._events.append(kind(key, block_id))
