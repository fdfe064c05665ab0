"""The request bodies of the OpenAI API as pydantic models, with vLLM's additions.

Knows names and types. Ranges are core/limits' business, what is refused `refusals`', what it means `conversion`'s.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_INT32_MAX = 2**31 - 1


def _integral(value: object) -> object:
    """JSON has one kind of number, and some clients write 16 as 16.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_integral), Field(ge=-_INT32_MAX - 1, le=_INT32_MAX)]
TokenId = Annotated[int, BeforeValidator(_integral), Field(ge=0, le=2**32 - 1)]
Seed = Annotated[int, BeforeValidator(_integral)]


class Body(BaseModel):
    """What every body is: an object whose known fields have the right type; unknown ones are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str | None = None


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Message(BaseModel):
    """One chat message. Fields beyond these go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: Any = None  # text, a list of text parts, or null
    name: str | None = None


class GenerationBody(Body):
    """What chat and text completions share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Seed | None = None
    n: Int | None = None
    logit_bias: dict[str, float] | None = None

    max_tokens: Int | None = None
    max_completion_tokens: Int | None = None
    min_tokens: Int | None = None
    stop: Any = None  # a text, a list of texts, or null
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Int | None = None
    return_token_ids: bool | None = None

    priority: Int | None = None
    cache_salt: str | None = None
    request_id: str | None = None

    # Accepted, and of no effect here.
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    session_id: Any = None
    spaces_between_special_tokens: Any = None
    store: Any = None
    user: Any = None
    verbosity: Any = None

    # Refused unless they ask for nothing; see `refusals`.
    allowed_token_ids: Any = None
    bad_words: Any = None
    best_of: Any = None
    echo: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    logits_processors: Any = None
    prompt_embeds: Any = None
    prompt_logprobs: Any = None
    response_format: Any = None
    return_tokens_as_token_ids: Any = None
    structured_outputs: Any = None
    suffix: Any = None
    use_beam_search: Any = None


class ChatCompletionBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Refused unless they ask for nothing; see `refusals`.
    audio: Any = None
    chat_template: Any = None
    documents: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    tool_choice: Any = None
    tools: Any = None
    web_search_options: Any = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Any = None  # a text, token ids, or a list of either
    logprobs: Int | None = None


class TokenizeBody(Body):
    """POST /tokenize: a text (`prompt`) or a chat (`messages`)."""

    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[TokenId]
