"""What changed in a prefix cache, for those who keep an index of it elsewhere. Committed blocks only; and pins."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvcache_service.core.block import group_of, hash_of


@dataclass(slots=True, kw_only=True)  # these two not frozen, which costs five times as much: a plan may tell hundreds
class BlocksStored:
    """A run of blocks, one behind another in one sequence, can be found from now on."""

    block_hashes: tuple[bytes, ...]
    parent_hash: bytes | None  # of the first; None at the start of a sequence
    token_ids: Sequence[int]  # empty where they are not known any more
    block_ids: tuple[int, ...]
    group_index: int = 0


@dataclass(slots=True)
class Unnamed:
    """A block that lost its content."""

    key: bytes
    block_id: int

    @property
    def block_hash(self) -> bytes:
        """The hash that it had."""
        return hash_of(self.key)

    @property
    def group_index(self) -> int:
        """The group of layers whose K/V it held."""
        return group_of(self.key)


class CopyDropped(Unnamed):
    """Another block still holds the same: the hash can still be found."""

    __slots__ = ()


class BlockRemoved(Unnamed):
    """It was the last block with this content: the hash is gone."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""


class PinEnd(Enum):
    """Why a pin ended."""

    UNPINNED = "unpinned"
    EXPIRED = "expired"
    GAVE_WAY = "gave_way"  # a request could not run otherwise
    ERASED = "erased"  # with its namespace
    LOST = "lost"  # a block of it turned out to hold something else


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSet:
    """A prefix is kept from now on, or for another time than before."""

    namespace: bytes | None
    pin_id: str
    keys: Sequence[bytes]
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PinEnded:
    """A prefix is not kept any more."""

    namespace: bytes | None
    pin_id: str
    reason: PinEnd


Event = BlocksStored | CopyDropped | BlockRemoved | AllBlocksCleared | PinSet | PinEnded
