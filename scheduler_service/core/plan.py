"""The values that cross the scheduler core's border: wishes to the KV cache service, its grants, steps and results.

A plan mirrors PlanStepRequest op by op; a step mirrors worker.v1 Step. Columns are parallel sequences.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a request's blocks hash under, besides its tokens."""

    request_id: str
    tenant: str = ""
    cache_salt: str = ""
    cache_bypass: bool = False
    trace_context: bytes = b""  # handed on, never read


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a step and a queue may hold."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_queue_len: int = 1024
    max_queued_tokens: int = 0  # to be computed for those who wait; 0 = no bound
    max_tenant_queue_len: int = 0  # requests of one tenant that wait; 0 = no bound
    max_queue_wait_s: float = 0.0  # predicted, until a newcomer's first token; 0 = no bound
    no_worker_timeout_s: float = 30.0  # without a worker, after which a request fails
    long_prefill_token_threshold: int = 0
    is_chunked_prefill: bool = True
    watermark: float = 0.0
    preempts_for_slots: bool = False  # a strictly higher class may take the slot of a lower one
    priority_aging_s: float = 60.0  # waiting that makes up for one class
    tenant_weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # others: 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A worker's block pool and what its model can hold."""

    num_blocks: int  # including the null block
    block_size: int
    max_model_len: int

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """Ids that became known, and positions written by acknowledged steps."""

    handles: Sequence[int] = ()
    num_acked_tokens: Sequence[int] = ()
    num_new_tokens: Sequence[int] = ()
    new_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frees:
    """Tables to release, each once per epoch."""

    handles: Sequence[int] = ()
    epochs: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """A request that the pool has not heard of."""

    handle: int
    epoch: int
    token_ids: Sequence[int]
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Grows:
    """Running requests that want to advance, in the order in which they are served."""

    handles: Sequence[int] = ()
    wants: Sequence[int] = ()
    victims: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admits:
    """Waiting requests, in queue order."""

    handles: Sequence[int] = ()
    num_known_tokens: Sequence[int] = ()
    num_watermark_blocks: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The wishes of one step. The KV cache service applies the ops in the order of the fields."""

    step: int
    acked_step: int = 0
    commits: Commits = Commits()
    frees: Frees = Frees()
    forgotten_handles: Sequence[int] = ()
    failed_step: int = 0
    declares: Sequence[Declare] = ()
    token_budget: int = 0
    max_admissions: int = 0
    long_prefill_token_threshold: int = 0
    whole_prompts_only: bool = False
    grows: Grows = Grows()
    admits: Admits = Admits()
    needs_answer: bool = True  # False: every row stays inside blocks it holds; settle(None) at once


class AdmissionStatus(enum.Enum):
    """What came of one admission."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    NOT_TRIED = "not_tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer to one admit."""

    status: AdmissionStatus
    num_cached_tokens: int = 0
    num_granted_tokens: int = 0
    block_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """How a pool is used; free + held + fenced = num_blocks - 1."""

    num_blocks: int = 0
    num_free: int = 0
    num_cached: int = 0
    num_held: int = 0
    num_held_by_pins_only: int = 0
    num_fenced: int = 0

    @property
    def is_held_by_others(self) -> bool:
        """Whether blocks may yet come free for a request that was refused: another holds some, or a fence does."""
        return self.num_held > self.num_held_by_pins_only or self.num_fenced > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a plan got."""

    grow_num_tokens: Sequence[int] = ()
    grow_num_new_blocks: Sequence[int] = ()
    grow_new_block_ids: Sequence[int] = ()
    preempted_handles: Sequence[int] = ()
    refused_handles: Sequence[int] = ()
    admissions: Sequence[Admission] = ()
    figures: PoolFigures = PoolFigures()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTable:
    """A block table as it stands, for opening a pool again."""

    handle: int
    epoch: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    num_acked_tokens: int
    num_computed_tokens: int  # steps in flight included
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that is new in a step, or comes back after a preemption; whole."""

    handle: int
    request_id: str
    epoch: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    block_ids: Sequence[int]
    num_computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as the worker gets it: only what changed since the step before."""

    step: int  # the plan it comes from
    seq: int
    acked_seq: int
    released_handles: Sequence[int]
    new_requests: Sequence[NewRequest]
    handles: Sequence[int]  # the rows; empty = those of the step before, in the same order
    num_scheduled_tokens: Sequence[int]  # empty = one each
    new_block_rows: Sequence[int]
    num_new_blocks: Sequence[int]  # empty = one each
    new_block_ids: Sequence[int]
    slots_digest: int  # of the rows' slots as the step finds them, its own changes included


class StepStatus(enum.Enum):
    """How a step ended."""

    OK = "ok"
    FAULT = "fault"  # nothing of it may be used
    VOID = "void"  # not run, because an earlier one failed or the worker's slots differ


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came back of one step; tokens of its sampling rows, in row order."""

    seq: int
    status: StepStatus = StepStatus.OK
    message: str = ""
    token_ids: Sequence[int] = ()
    num_tokens: Sequence[int] = ()  # per sampling row; empty = one each
