"""What changed in a prefix cache, for those who keep an index of it elsewhere. Committed blocks only."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """A run of blocks, one behind another in one sequence, can be found from now on."""

    block_hashes: tuple[bytes, ...]
    parent_hash: bytes | None  # of the first; None at the start of a sequence
    token_ids: Sequence[int]
    block_ids: tuple[int, ...]
    group_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDropped:
    """A block lost its content, but another block still holds the same: the hash can still be found."""

    block_hash: bytes
    block_id: int
    group_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """The last block with this content lost it: the hash is gone."""

    block_hash: bytes
    block_id: int
    group_index: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""


Event = BlocksStored | CopyDropped | BlockRemoved | AllBlocksCleared
