"""The parts of the 32-bit digest by which worker and scheduler compare a step's rows; see docs/protocol.md.

All numbers are taken modulo 2^32. A chain over values v starts at 0 and goes on with (chain + v) * MULTIPLIER.
"""

from collections.abc import Iterable
from typing import Final

MULTIPLIER: Final = 0x01000193
MASK: Final = 0xFFFFFFFF


def weight(handle: int, epoch: int) -> int:
    """An odd number of its own for each life of a request, so that no two errors cancel each other out."""
    mixed = (handle * 0x9E3779B1 + epoch) & MASK
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & MASK
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & MASK
    return (mixed ^ (mixed >> 16)) | 1


def of_table(block_ids: Iterable[int], start: int = 0) -> int:
    """The chain over block id + 1 of a table; `start` is that of the blocks before these."""
    for block_id in block_ids:
        start = (start + block_id + 1) * MULTIPLIER & MASK
    return start
