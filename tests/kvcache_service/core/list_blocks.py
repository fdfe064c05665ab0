"""The blocks of a pool told in plain lists: which are free, how many use each, what each is named for.

Slow, and meant to be read as the specification. Knows no requests and no plans: those are in `list_pool.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvcache_service.core.hash_extras import Extras


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a pool is made with."""

    num_blocks: int
    block_size: int
    caching: bool = True
    full_sequence_gate: bool = True


class Prefix(NamedTuple):
    """What a block is named for: all tokens up to its end, and what keeps them apart from the same ones of others."""

    tokens: tuple[int, ...]
    extras: Extras


class Told(NamedTuple):
    """One event. The tokens are those of stored blocks."""

    what: str  # stored, removed, copy_dropped
    block_ids: tuple[int, ...]
    token_ids: tuple[int, ...] = ()


class ListBlocks:
    """Block 0 is never given out. A reserved block has a name, but is not known to be written.

    Where blocks come as a dict, they are those of one request by their index in its table, ascending.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.free = list(range(1, setup.num_blocks))  # given out from the front
        self.ref_cnt = [0] * setup.num_blocks
        self.names: list[Prefix | None] = [None] * setup.num_blocks
        self.copies: dict[Prefix, list[int]] = {}  # first named first
        self.reserved: dict[int, object] = {}  # block id -> the reservation it is under
        self.events: list[Told] = []
        self.num_evicted = 0

    def take(self, num_blocks: int) -> list[int]:
        """The blocks at the front; what they were named for is forgotten, and told if it was committed."""
        block_ids, self.free = self.free[:num_blocks], self.free[num_blocks:]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
            if self.names[block_id] is not None:
                self.num_evicted += 1
                was_committed = block_id not in self.reserved
                copies = self.unname(block_id)
                if was_committed:
                    is_left = any(copy not in self.reserved for copy in copies)
                    self.events.append(Told("copy_dropped" if is_left else "removed", (block_id,)))
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more user for each; a free block is free no longer."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                self.free.remove(block_id)
            self.ref_cnt[block_id] += 1

    def num_idle(self, block_ids: Iterable[int]) -> int:
        """How many of these are free."""
        return sum(self.ref_cnt[block_id] == 0 for block_id in block_ids)

    def release(self, block_table: Sequence[int]) -> None:
        """One user less for each, the deepest first.

        Of those that nobody uses now the unnamed go to the front as a batch, the named to the end one by one; with
        caching off all go to the end.
        """
        blank: list[int] = []
        for block_id in reversed(block_table):
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0:
                is_kept = self.names[block_id] is not None or not self.setup.caching
                (self.free if is_kept else blank).append(block_id)
        self.free = blank + self.free

    def name(self, block_id: int, prefix: Prefix) -> None:
        """From now on it is found, behind the copies that were named before."""
        assert self.names[block_id] is None
        self.names[block_id] = prefix
        self.copies.setdefault(prefix, []).append(block_id)

    def unname(self, block_id: int) -> list[int]:
        """It is found no longer, and under no reservation; the other blocks with its name."""
        prefix, self.names[block_id] = self.names[block_id], None
        assert prefix is not None
        copies = self.copies[prefix]
        copies.remove(block_id)
        if not copies:
            del self.copies[prefix]
        self.reserved.pop(block_id, None)
        return copies

    def confirm(self, reservation: object, blocks: dict[int, int]) -> dict[int, int]:
        """Commit those of its blocks that were not given out again since."""
        live = self._live(reservation, blocks)
        for block_id in live.values():
            del self.reserved[block_id]
        return live

    def withdraw(self, reservation: object, blocks: dict[int, int]) -> None:
        """Unname those of its blocks that were not given out again, the last first; a free one is given out next."""
        for block_id in reversed(self._live(reservation, blocks).values()):
            self.unname(block_id)
            if self.ref_cnt[block_id] == 0:
                self.free.remove(block_id)
                self.free.insert(0, block_id)

    def tell_stored(self, blocks: dict[int, int], tokens: Sequence[int]) -> None:
        """One event for each stretch of blocks that lie one behind another."""
        size = self.setup.block_size
        for index, block_id in blocks.items():
            token_ids = tuple(tokens[index * size : (index + 1) * size])
            before = self.events.pop() if index - 1 in blocks else Told("stored", ())
            self.events.append(Told("stored", (*before.block_ids, block_id), before.token_ids + token_ids))

    def _live(self, reservation: object, blocks: dict[int, int]) -> dict[int, int]:
        return {index: block_id for index, block_id in blocks.items() if self.reserved.get(block_id) is reservation}
