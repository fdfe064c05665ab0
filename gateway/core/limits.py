"""Which requests are allowed: ranges, lengths, names. One set of rules for gRPC and HTTP.

The exceptions carry what errors.from_exception looks for: `field`, and `metadata` with every number of the message.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.generation import ChatPrompt, GenerationRequest, Sampling, Stopping, TextPrompt, TokenPrompt

MAX_LOGPROBS = 20
MAX_STOP_CHARS = 1024  # of one stop string; so much text may have to be held back
MAX_ID_CHARS = 256  # of a request id, a tenant, a cache salt

_INT32 = range(-(2**31), 2**31)
_SEEDS = range(-(2**63), 2**64)  # signed or unsigned; either way the wire has the same 64 bits
_POSITIVE_FLOAT32 = (2.0**-126, 2.0**127)  # what the wire to the worker holds without becoming 0 or infinite


class RequestError(Exception):
    """A caller's mistake."""

    def __init__(self, message: str, *, field: str | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.metadata: Mapping[str, str] = metadata or {}


class InvalidParameter(RequestError):
    """A value that is not allowed: `InvalidParameter("temperature", "must be 0 to 2, got 3")`."""

    def __init__(self, field: str, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message, field=field or None, metadata=metadata)


class UnsupportedParameter(InvalidParameter):
    """A value that means something, but that this server cannot honour; ignoring it would be worse."""


class UnknownModel(RequestError):
    """No model of that name is served here."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        names = ", ".join(available)
        super().__init__(
            f"The model {name!r} does not exist; served are: {names}", field="model", metadata={"available": names}
        )


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for a single token. The first words are OpenAI's: clients look for them."""

    def __init__(self, *, limit: int, num_prompt_tokens: int, max_tokens: int | None) -> None:
        asked = "" if max_tokens is None else f" and asks for up to {max_tokens} more"
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, the prompt has {num_prompt_tokens} tokens"
            f"{asked}. Shorten the prompt to at most {limit - 1} tokens.",
            field="prompt",
            metadata={
                "limit": str(limit),
                "prompt_tokens": str(num_prompt_tokens),
                "max_tokens": str(max_tokens or 0),
                "max_allowed": str(max(0, limit - num_prompt_tokens)),
            },
        )


class DuplicateRequest(RequestError):
    """The tenant has a live request of that id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"the request id {request_id!r} belongs to a request that still runs; take a new id, or none",
            field="request_id",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The bounds that depend on the model and on the settings."""

    vocab_size: int
    max_choices: int
    max_stop_sequences: int


def check(request: GenerationRequest, limits: RequestLimits) -> None:
    """Everything that can be known before the prompt is tokenized. Raises InvalidParameter for the first mistake."""
    _check_names(request)
    _check_prompt(request.prompt, limits)
    _check_sampling(request.sampling, limits)
    _check_stopping(request.stopping, limits)
    _check_range("n", request.n, 1, limits.max_choices)
    if request.num_logprobs is not None:
        _check_range("top_logprobs", request.num_logprobs, 0, MAX_LOGPROBS)
    if request.priority not in _INT32:
        raise InvalidParameter("priority", f"must fit 32 bits, got {request.priority}")


def priority_of(text: str) -> int:
    """The priority in an `x-priority` header or metadata entry. Raises InvalidParameter."""
    try:
        value = int(text)
    except ValueError:
        raise InvalidParameter("x-priority", f"must be an integer, got {text[:40]!r}") from None
    if value not in _INT32:
        raise InvalidParameter("x-priority", f"must fit 32 bits, got {text[:40]}")
    return value


def timeout_ms_of(name: str, text: str) -> float:
    """The milliseconds in a timeout header. Raises InvalidParameter."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InvalidParameter(name, f"must be a number of milliseconds above 0, got {text[:40]!r}")
    return value


def max_new_tokens(num_prompt_tokens: int, *, requested: int | None, max_model_len: int) -> int:
    """How many tokens may be generated: what was asked for, as far as the context has room.

    Raises ContextLengthExceeded when there is none, InvalidParameter for an empty prompt.
    """
    if num_prompt_tokens == 0:
        raise InvalidParameter("prompt", "must have at least one token, got none")
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthExceeded(limit=max_model_len, num_prompt_tokens=num_prompt_tokens, max_tokens=requested)
    room = max_model_len - num_prompt_tokens
    return room if requested is None else min(requested, room)


def check_text(field: str, text: str) -> None:
    """Refuse a text that is no Unicode text: JSON can spell half of a surrogate pair, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as broken:
        raise InvalidParameter(field, f"has half of a surrogate pair at character {broken.start}") from None


def check_token_ids(field: str, token_ids: Sequence[int], *, vocab_size: int) -> None:
    """Every id must be one of the model's."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidParameter(field, f"token ids are 0 to {vocab_size - 1}, got {token_id}")


def check_prompt_text(prompt: TextPrompt | ChatPrompt) -> None:
    """A text or a chat must be Unicode, and a chat must have a message."""
    if isinstance(prompt, TextPrompt):
        return check_text("prompt", prompt.text)
    if not prompt.messages:
        raise InvalidParameter("messages", "must hold at least one message")
    if prompt.continue_final_message and prompt.add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message", "needs add_generation_prompt = false: an answer is continued or begun, not both"
        )
    for at, message in enumerate(prompt.messages):
        check_text(f"messages[{at}].role", message.role)
        check_text(f"messages[{at}].content", message.content or "")
        check_text(f"messages[{at}].name", message.name or "")
    return None


def _check_names(request: GenerationRequest) -> None:
    names = {
        "request_id": request.client_request_id,
        "x-request-id": request.correlation_id,
        "x-tenant-id": request.tenant,
        "cache_salt": request.cache_salt,
    }
    for field, value in names.items():
        check_text(field, value)
        if len(value) > MAX_ID_CHARS:
            raise InvalidParameter(field, f"must have at most {MAX_ID_CHARS} characters, got {len(value)}")


def _check_prompt(prompt: TextPrompt | TokenPrompt | ChatPrompt, limits: RequestLimits) -> None:
    if isinstance(prompt, TokenPrompt):
        check_token_ids("prompt", prompt.token_ids, vocab_size=limits.vocab_size)
        return
    check_prompt_text(prompt)
    if isinstance(prompt, TextPrompt) and not prompt.text:
        raise InvalidParameter("prompt", "must not be empty")


def _check_sampling(sampling: Sampling, limits: RequestLimits) -> None:
    for field, value, low, high in _ranges(sampling):
        if value is not None:
            _check_range(field, value, low, high)
    if sampling.top_p == 0:
        raise InvalidParameter("top_p", "must be above 0, got 0; for greedy decoding set temperature to 0")
    if sampling.seed is not None and sampling.seed not in _SEEDS:
        raise InvalidParameter("seed", f"must fit 64 bits, got {str(sampling.seed)[:40]}")
    check_token_ids("logit_bias", tuple(sampling.logit_bias), vocab_size=limits.vocab_size)
    for token_id, bias in sampling.logit_bias.items():
        _check_range(f"logit_bias[{token_id}]", bias, -100, 100)


def _ranges(sampling: Sampling) -> Iterator[tuple[str, float | None, float, float]]:
    yield "temperature", sampling.temperature, 0, 2
    yield "top_p", sampling.top_p, 0, 1
    yield "top_k", sampling.top_k, -1, 2**31 - 1
    yield "min_p", sampling.min_p, 0, 1
    yield "presence_penalty", sampling.presence_penalty, -2, 2
    yield "frequency_penalty", sampling.frequency_penalty, -2, 2
    yield "repetition_penalty", sampling.repetition_penalty, *_POSITIVE_FLOAT32


def _check_stopping(stopping: Stopping, limits: RequestLimits) -> None:
    if stopping.max_tokens is not None:
        _check_range("max_tokens", stopping.max_tokens, 1, 2**31 - 1)
    _check_range("min_tokens", stopping.min_tokens, 0, stopping.max_tokens or 2**31 - 1)
    if len(stopping.stop_sequences) > limits.max_stop_sequences:
        raise InvalidParameter("stop", f"at most {limits.max_stop_sequences}, got {len(stopping.stop_sequences)}")
    for sequence in stopping.stop_sequences:
        check_text("stop", sequence)
        _check_range("stop: length of a sequence", len(sequence), 1, MAX_STOP_CHARS)
    check_token_ids("stop_token_ids", stopping.stop_token_ids, vocab_size=limits.vocab_size)


def _check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also true for nan
        raise InvalidParameter(
            field,
            f"must be {low:g} to {high:g}, got {value:g}",
            metadata={"min": f"{low:g}", "max": f"{high:g}", "value": f"{value:g}"},
        )
