"""What crosses the worker's wires, as plain values: steps, the requests in them, and their results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]  # token ids, block ids or handles, as they were packed


class BadStep(Exception):
    """A step that contradicts what the worker knows; it must not touch memory."""


class SlotsDiffer(BadStep):
    """What the worker knows of a step's requests is not what the scheduler believes: they must come whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a request draws its tokens, and what it may not draw yet."""

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    num_logprobs: int | None = None  # None = none at all; 0 = that of the sampled token
    min_tokens: int = 0
    ending_token_ids: tuple[int, ...] = ()  # end-of-sequence and stop ids, masked until min_tokens

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def is_plain(self) -> bool:
        """Whether the next token is simply the most likely one, and nothing else is asked."""
        has_mask = self.min_tokens > 0 and self.ending_token_ids
        return not (self.temperature or self.has_penalties or self.logit_bias or has_mask) and self.num_logprobs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request, whole: at its first step, and again after every preemption."""

    handle: int
    request_id: str
    epoch: int
    token_ids: Ids  # known: prompt, then outputs
    num_prompt_tokens: int
    block_ids: Ids  # the whole table, also for this step
    num_computed_tokens: int
    sampling: Sampling
    trace_context: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rows of (request, how many tokens it advances); None and empty mean what the proto says."""

    session: int
    step: int
    seq: int
    acked_seq: int
    released_handles: Ids
    new_requests: tuple[NewRequest, ...]
    handles: Ids  # empty = the rows of the step before
    num_scheduled_tokens: Ids  # empty = one each
    new_block_rows: Ids
    num_new_blocks: Ids  # empty = one each
    new_block_ids: Ids
    slots_digest: int | None = None  # of the rows' slots, after this step's changes; None = not to be checked
    trace_context: bytes = b""
    defect: str = ""  # what could not be read of it; such a step cannot run


class StepStatus(Enum):
    """How a step ended."""

    OK = auto()
    FAULT = auto()  # it failed; no K/V of it may be used
    VOID = auto()  # it was not run, because of an earlier one or because the slots differ


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model's own distribution."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """The sampled token and the most likely ones, most likely first."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Where a step's time went, in microseconds."""

    gap_us: int = 0  # not running although the step was there
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    idle_us: int = 0  # since the end of the step before, waiting for work included


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What a step that ran was made of, for spans and metrics."""

    ended_ns: int  # wall clock
    num_rows: int
    num_tokens: int
    num_decode_rows: int
    trace_context: bytes  # of the step's own trace
    joined: tuple[bytes, ...]  # trace contexts of the requests that were new here


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The answer to one step."""

    session: int
    step: int
    seq: int
    status: StepStatus
    message: str = ""
    token_ids: tuple[int, ...] = ()  # one per row that sampled, in row order
    logprobs: tuple[PositionLogprobs, ...] = ()  # of the sampling rows that asked
    timing: StepTiming = StepTiming()
    facts: StepFacts | None = None  # None unless it ran
