"""The 32-bit digest by which worker and scheduler compare what they believe of a step's rows; see docs/protocol.md.

All numbers are taken modulo 2^32. A chain over values v starts at 0 and goes on with (chain + v) * MULTIPLIER.
"""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

MULTIPLIER = 0x01000193
MASK = 0xFFFFFFFF


def weight(handle: int, epoch: int) -> int:
    """An odd number of its own for each life of a request, so that no two errors cancel each other out."""
    mixed = (handle * 0x9E3779B1 + epoch) & MASK
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & MASK
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & MASK
    return (mixed ^ (mixed >> 16)) | 1


def of_table(block_ids: Words, start: int = 0) -> int:
    """The chain over block id + 1 of a table; `start` is that of the blocks before these."""
    if len(block_ids) > 16:
        return _chained(block_ids + np.uint32(1), start)
    for block_id in block_ids.tolist():  # the usual case, in which arrays cost more than they save
        start = (start + block_id + 1) * MULTIPLIER & MASK
    return start


def of_rows(weights: Words, table_digests: Words, num_computed_tokens: npt.NDArray[np.int64]) -> int:
    """The digest of a step's rows, in their order: never 0, which on the wire means that there is none."""
    return _chained(weights * (table_digests + num_computed_tokens.astype(np.uint32)), 0) or 1


def _chained(values: Words, start: int) -> int:
    powers = np.cumprod(np.full(len(values), MULTIPLIER, dtype=np.uint32), dtype=np.uint32)
    return (int((values * powers[::-1]).sum(dtype=np.uint32)) + start * int(powers[-1])) & MASK
