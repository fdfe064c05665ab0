"""The values that cross the border of the core: a plan and what it got. They mirror protos/octavo/kvcache/v1.

Columns are parallel sequences of integers, one row per request; a plan of 256 grows holds no object per grow.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvcache_service.core.request import ANONYMOUS, Identity
from kvcache_service.core.statistics import MissReason

NO_NUMBERS: Sequence[int] = ()


class AdmissionStatus(Enum):
    """What came of one admission."""

    ADMITTED = "admitted"
    REFUSED = "refused"  # blocks are missing, or the budget when only whole prompts are taken
    NOT_TRIED = "not_tried"  # something before it was preempted or refused, or budget or admissions were used up


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A request that this pool has not heard of."""

    handle: int
    epoch: int = 0
    token_ids: Sequence[int] = NO_NUMBERS
    identity: Identity = ANONYMOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTable:
    """A block table as it stood after the last settled plan."""

    handle: int
    epoch: int = 0
    token_ids: Sequence[int] = NO_NUMBERS
    block_ids: Sequence[int] = NO_NUMBERS
    num_acked_tokens: int = 0
    num_computed_tokens: int = 0
    identity: Identity = ANONYMOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """Ids that became known, and positions written by acknowledged steps."""

    handles: Sequence[int] = NO_NUMBERS
    num_acked_tokens: Sequence[int] = NO_NUMBERS
    num_new_tokens: Sequence[int] = NO_NUMBERS
    new_token_ids: Sequence[int] = NO_NUMBERS  # request after request


@dataclass(frozen=True, slots=True, kw_only=True)
class Frees:
    """Tables to release, each of the epoch that it belongs to."""

    handles: Sequence[int] = NO_NUMBERS
    epochs: Sequence[int] = NO_NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Grows:
    """Running requests that want to advance, in the order in which they are served."""

    handles: Sequence[int] = NO_NUMBERS
    wants: Sequence[int] = NO_NUMBERS  # tokens, before the budget; empty = one each
    victims: Sequence[int] = NO_NUMBERS  # whose blocks may be taken for the others, first victim first


@dataclass(frozen=True, slots=True, kw_only=True)
class Admits:
    """Waiting requests, in queue order."""

    handles: Sequence[int] = NO_NUMBERS
    num_known_tokens: Sequence[int] = NO_NUMBERS
    num_watermark_blocks: Sequence[int] = NO_NUMBERS  # must stay free after each admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One plan for one pool. The ops are applied in the order of the fields."""

    step: int
    acked_step: int = 0
    commits: Commits = field(default_factory=Commits)
    frees: Frees = field(default_factory=Frees)
    forgotten_handles: Sequence[int] = NO_NUMBERS
    failed_step: int = 0
    declares: Sequence[Declaration] = ()
    token_budget: int = 0
    max_admissions: int = 0
    long_prefill_token_threshold: int = 0
    whole_prompts_only: bool = False
    grows: Grows = field(default_factory=Grows)
    admits: Admits = field(default_factory=Admits)


@dataclass(frozen=True, slots=True)
class Growth:
    """What one grow got: its new blocks, or None; and whose blocks were taken for it."""

    new_block_ids: list[int] | None
    preempted_handles: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What came of one admission, and what it says to those who ask why."""

    handle: int
    status: AdmissionStatus
    num_cached_tokens: int = 0
    num_granted_tokens: int = 0
    block_ids: Sequence[int] = ()  # the whole table: hit blocks, then new ones
    num_known_tokens: int = 0
    num_evicted_blocks: int = 0  # prefixes forgotten for it
    miss_reason: MissReason | None = None  # not looked for if it was refused before
    num_refusals: int = 0  # how often it was refused since it last ran, this time included


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How a pool is used. num_free + num_held + num_fenced = num_blocks - 1."""

    num_blocks: int
    num_free: int
    num_cached: int  # the named part of the free ones
    num_held: int  # by requests or pins
    num_fenced: int  # by nobody, but read by somebody outside the step order
    num_pinned: int  # the part of the held ones that a pin holds
    num_held_by_pins_only: int
    num_query_tokens: int
    num_hit_tokens: int
    num_preempted_query_tokens: int
    num_preempted_hit_tokens: int
    num_evicted_blocks: int

    @property
    def num_blank(self) -> int:
        """Free blocks that hold no prefix."""
        return self.num_free - self.num_cached

    @property
    def usage(self) -> float:
        """Share of the blocks that requests and pins hold, 0 to 1."""
        return self.num_held / (self.num_blocks - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What was forgotten of a namespace in one pool."""

    num_blocks: int = 0  # committed ones that lost their name
    num_pins: int = 0
    num_requests: int = 0  # that run on and publish nothing more


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a plan got."""

    grow_num_tokens: "array[int]"  # per grow; 0 = refused, preempted in this plan, or no budget left
    grow_num_new_blocks: "array[int]"
    grow_new_block_ids: "array[int]"  # grow after grow
    preempted_handles: Sequence[int]  # in the order in which their blocks were taken
    refused_handles: Sequence[int]  # grows for which blocks were missing, and which were not preempted
    admissions: Sequence[Admission]
    figures: Figures
