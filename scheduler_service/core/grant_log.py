"""Which blocks recent plans gave out, so that a KV cache service that has just started knows what was overwritten.

Bounded: what it forgets, it says so, and a record that is older than that is not restored.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.plan import Grants

MAX_PLANS = 1024
MAX_BLOCKS = 65_536


@dataclass(frozen=True, slots=True, order=True)
class PlanPosition:
    """A plan of a worker incarnation: plans are numbered from 1 again whenever its pool is opened."""

    opening: int
    step: int


@dataclass(frozen=True, slots=True)
class GrantedBlocks:
    """What one plan gave out."""

    position: PlanPosition
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One opening of the pool: its number, and every block given out by the plans after `granted_after`."""

    number: int
    granted_after: PlanPosition
    granted: Sequence[GrantedBlocks]


class GrantLog:
    """The grants of one worker incarnation, under one scheduler."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._opening = 0
        self._forgotten = PlanPosition(0, 0)  # everything after this plan is still known
        self._granted: deque[GrantedBlocks] = deque()
        self._num_blocks = 0

    def next_opening(self) -> Opening:
        """Count one more opening, whatever comes of it: an answer that is lost may have been a yes."""
        self._opening += 1
        return Opening(number=self._opening, granted_after=self._forgotten, granted=tuple(self._granted))

    def note(self, step: int, grants: Grants) -> None:
        """A plan of the present opening was settled. Hits are not given out: they keep what they hold."""
        block_ids = array("I", grants.grow_new_block_ids)
        for admission in grants.admissions:
            num_hits = admission.num_cached_tokens // self._block_size
            block_ids.extend(admission.block_ids[num_hits:])
        if block_ids:
            self._granted.append(GrantedBlocks(PlanPosition(self._opening, step), block_ids))
            self._num_blocks += len(block_ids)
        while len(self._granted) > MAX_PLANS or self._num_blocks > MAX_BLOCKS:
            oldest = self._granted.popleft()
            self._num_blocks -= len(oldest.block_ids)
            self._forgotten = oldest.position
