"""How long a prefix hit is where layers look back a limited number of tokens, and where groups of layers differ.

Pure functions over who holds what; blocks are asked for by index in the sequence. A pool of today has one
full-attention group: these are the rules for more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvcache_service.core.block import NULL_BLOCK_ID

# The block that holds this index of the sequence for one group of layers; None if nobody holds it.
Holder = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that keep the same positions: all of them, or with a window only those behind which it ends."""

    find: Holder
    num_window_blocks: int | None = None  # contiguous blocks that the next token reads; None = all before it


def num_window_blocks(window: int, block_size: int) -> int:
    """Blocks before the next token that a window of so many tokens, itself included, reaches into at block borders."""
    return -(-(window - 1) // block_size)


def num_hit_blocks(group: Group, limit: int) -> int:
    """The longest hit of one group, at most `limit` blocks.

    A window needs only its last blocks; where it reaches back to the start, those that there are do.
    """
    if group.num_window_blocks is None:
        return next((index for index in range(limit) if group.find(index) is None), limit)
    contiguous = 0
    for index in range(limit - 1, -1, -1):
        contiguous = contiguous + 1 if group.find(index) is not None else 0
        if contiguous == group.num_window_blocks:
            return index + contiguous
    return contiguous  # the run that begins at the start


def hit_blocks(group: Group, num_blocks: int) -> list[int]:
    """The blocks of a hit of this length; before its window a position needs no storage, and has the null block."""
    first = 0 if group.num_window_blocks is None else max(0, num_blocks - group.num_window_blocks)
    found = [group.find(index) for index in range(first, num_blocks)]
    block_ids = [block_id for block_id in found if block_id is not None]
    assert len(block_ids) == len(found), f"blocks {first} to {num_blocks} are not all held"
    return [NULL_BLOCK_ID] * first + block_ids


def common_num_hit_blocks(groups: Sequence[Group], limit: int) -> int:
    """The longest hit that every group has, at most `limit` blocks.

    A shorter limit can only shorten a hit, so each group cuts what the others found until nobody does.
    """
    while True:
        shortest = min((num_hit_blocks(group, limit) for group in groups), default=0)
        if shortest == limit:
            return limit
        limit = shortest
