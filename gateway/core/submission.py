"""What the gateway and the scheduler tell each other about a request, as values.

Every default is resolved here: a submission means what it says.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.core.generation import FinishReason, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What holds for fields that a request leaves out; a model's generation_config.json may say otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSampling:
    """How tokens are drawn, nothing left open."""

    temperature: float
    top_p: float
    top_k: int  # 0 = all
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int  # 64 bits, unsigned
    logit_bias: Mapping[int, float]
    num_logprobs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedStopping:
    """When a request ends, as far as token ids can tell."""

    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    eos_token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One answer's request to the scheduler."""

    prompt_token_ids: Sequence[int]
    sampling: ResolvedSampling
    stopping: ResolvedStopping
    client_request_id: str
    tenant: str
    priority: int
    deadline_at_s: float | None  # monotonic clock of this process
    cache_salt: str
    cache_bypass: bool
    trace_context: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The request was scheduled for the first time."""

    num_cached_tokens: int
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLogprobs:
    """Logprobs of one position: (token id, logprob) pairs, the most likely first in `top`."""

    sampled: tuple[int, float]
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """New tokens, as they came in one message."""

    token_ids: Sequence[int]
    logprobs: Sequence[SampledLogprobs]
    received_at_s: float  # monotonic clock of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFailure:
    """Why the scheduler refused or ended a request."""

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    retry_after_s: float | None = None
    quota_subject: str | None = None  # what there is too much of


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The life of a request in numbers, as the scheduler counted."""

    num_cached_tokens: int
    num_preemptions: int
    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The request is over; all its tokens came before. `failure` is set exactly if the reason is ERROR."""

    reason: FinishReason
    stop_token_id: int | None
    failure: SchedulerFailure | None
    figures: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The request was never taken."""

    failure: SchedulerFailure


Update = Admitted | Tokens | Ended | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler said last about itself; not ready, with the reason, while nobody answers."""

    is_ready: bool = False
    is_draining: bool = False  # it is about to end
    is_refusing: bool = False  # it was told to take nothing new
    reason: str = "the scheduler does not answer yet"
    max_model_len: int | None = None  # None: no worker has named the model yet
    vocab_size: int | None = None
    num_blocks: int = 0
    block_size: int = 0


def resolve_sampling(
    sampling: Sampling, defaults: SamplingDefaults, *, seed: int, num_logprobs: int | None
) -> ResolvedSampling:
    """Fill in what the request left out. `seed` is the answer's own, see `seed_of_choice`."""
    top_k = _or(sampling.top_k, defaults.top_k)
    return ResolvedSampling(
        temperature=_or(sampling.temperature, defaults.temperature),
        top_p=_or(sampling.top_p, defaults.top_p),
        top_k=max(0, int(top_k)),
        min_p=_or(sampling.min_p, defaults.min_p),
        presence_penalty=_or(sampling.presence_penalty, 0.0),
        frequency_penalty=_or(sampling.frequency_penalty, 0.0),
        repetition_penalty=_or(sampling.repetition_penalty, defaults.repetition_penalty),
        seed=seed,
        logit_bias=sampling.logit_bias,
        num_logprobs=num_logprobs,
    )


def seed_of_choice(seed: int, index: int) -> int:
    """The first answer takes the caller's seed, so that n = 1 gives the same text; the others take one derived."""
    seed %= 2**64
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(b"%d/%d" % (seed, index)).digest()[:8])


def end_told_by(stopping: ResolvedStopping, output_token_ids: Sequence[int]) -> Ended | None:
    """How a request ended, as far as its tokens tell; None if it goes on. For when the message that says so is lost."""
    if not output_token_ids:
        return None
    last = output_token_ids[-1]
    if last in stopping.stop_token_ids or (last in stopping.eos_token_ids and not stopping.ignore_eos):
        return Ended(reason=FinishReason.STOP, stop_token_id=last, failure=None, figures=None)
    if len(output_token_ids) >= stopping.max_tokens:
        return Ended(reason=FinishReason.LENGTH, stop_token_id=None, failure=None, figures=None)
    return None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
