"""What a client asks for and what it gets back, as values that gRPC and HTTP share.

Knows no wire format and no tokenizer. A sampling or stopping field that is None was not given: the model's default
holds. `limits` says which values are allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """A text to continue."""

    text: str
    add_special_tokens: bool = True  # begin it as the tokenizer does, e.g. with a BOS token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids to continue, as they stand."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    content: str | None
    name: str | None = None
    extras: Mapping[str, object] = field(
        default_factory=lambda: MappingProxyType({})
    )  # e.g. tool_calls, for the template


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A chat; the model's chat template makes a text of it."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. None = the model's default (its generation_config.json), else no effect."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1 = all
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None  # None: the gateway draws one
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """When an answer ends. `max_tokens` None = the rest of the context."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_sequences: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_sequence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call: a prompt, answered `n` times."""

    prompt: Prompt
    model: str = ""  # a name or an alias; empty = the only one
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    num_logprobs: int | None = None  # None = no logprobs; k = of the sampled token and of the k most likely
    n: int = 1
    skip_special_tokens: bool = True
    cache_salt: str = ""
    cache_bypass: bool = False
    priority: int = 0  # lower is served first
    client_request_id: str = ""  # unique among the tenant's live requests; empty = the gateway makes one
    correlation_id: str = ""  # x-request-id; names the request where client_request_id is empty, need not be unique
    tenant: str = ""
    deadline_s: float | None = None  # seconds left until the client gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The log probability of one token."""

    token_id: int
    token: bytes  # can be a part of a character
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """The sampled token of one position, and the most likely ones, most likely first."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]


class FinishReason(Enum):
    """Why an answer ended; the values are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """First event: the request was admitted."""

    request_id: str
    model: str
    num_prompt_tokens: int
    num_cached_tokens: int
    created_s: float  # Unix time of the request's arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """What piled up for one answer since its last chunk; the last one carries the finish reason.

    `text` holds whole characters only and nothing of a stop string, so it can be empty although tokens came.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()  # one per token id, if asked for
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens used. The prompt counts once, whatever `n`."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int

    @property
    def num_total_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of the slowest answer went; seconds."""

    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float  # arrival to first token, at the gateway
    e2e_s: float
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Last event: every answer ended."""

    usage: Usage
    timing: Timing


GenerationEvent = Started | TextChunk | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model as clients see it."""

    name: str
    aliases: tuple[str, ...]
    max_model_len: int
    is_ready: bool
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """Whether requests can be served now; what the scheduler said last, and the gateway's own state."""

    is_ready: bool
    reason: str  # in words, when not ready
    cause: Literal["", "loading", "no_worker", "stalled", "draining"] = ""  # stalled: there are workers, and all wait
    num_blocks: int = 0
    block_size: int = 0
