"""What a body asks for, as the gateway's own generation requests.

Pure. Whether the values are allowed is checked by core/limits, for HTTP and gRPC alike; here only what has no other
form in OpenAI's API: prompts of several types, texts in parts, defaults that differ per endpoint.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.core.generation import (
    ChatMessage,
    ChatPrompt,
    Prompt,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
)
from gateway.core.limits import MAX_LOGPROBS, InvalidParameter, UnsupportedParameter
from gateway.openai.json_value import named
from gateway.openai.protocol import ChatCompletionBody, CompletionBody, GenerationBody, Message, TokenizeBody

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for text completions; a chat has the rest of the context

_TEXT_PARTS = ("text", "refusal")


def sampling(body: GenerationBody) -> Sampling:
    """How tokens are drawn."""
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        logit_bias=_logit_bias(body.logit_bias or {}),
    )


def stopping(body: GenerationBody, default_max_tokens: int | None) -> Stopping:
    """When an answer ends; max_completion_tokens wins over its older name."""
    limits = (body.max_completion_tokens, body.max_tokens, default_max_tokens)
    return Stopping(
        max_tokens=next((limit for limit in limits if limit is not None), None),
        min_tokens=body.min_tokens or 0,
        stop_sequences=_stop_sequences(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        include_stop_sequence=bool(body.include_stop_str_in_output),
    )


def chat_prompt(body: ChatCompletionBody | TokenizeBody) -> ChatPrompt:
    """The messages, and how the template treats the last one."""
    continues = bool(body.continue_final_message)
    return ChatPrompt(
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages or ())),
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs=MappingProxyType(body.chat_template_kwargs or {}),
    )


def chat_num_logprobs(body: ChatCompletionBody) -> int | None:
    """How many most likely tokens to report per position; None = no logprobs."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidParameter("top_logprobs", "needs logprobs: true")
    return None


def completion_num_logprobs(body: CompletionBody) -> int | None:
    """As chat_num_logprobs, for the endpoint where one field says both."""
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise InvalidParameter("logprobs", f"must be 0 to {MAX_LOGPROBS}, got {body.logprobs}")
    return body.logprobs


def completion_prompts(body: CompletionBody) -> list[Prompt]:
    """A text, token ids, or a list of either: one prompt each."""
    special = True if body.add_special_tokens is None else body.add_special_tokens
    match body.prompt:
        case None:
            raise InvalidParameter("prompt", "is required: a text, token ids, or a list of either")
        case str(text):
            return [TextPrompt(text=text, add_special_tokens=special)]
        case []:
            raise InvalidParameter("prompt", "is an empty list")
        case [int(), *_] as token_ids:
            return [_token_prompt(token_ids, "prompt")]
        case list(prompts):
            return [
                _one_of_many(prompt, f"prompt[{i}]", add_special_tokens=special) for i, prompt in enumerate(prompts)
            ]
        case other:
            raise InvalidParameter("prompt", f"must be a text, token ids, or a list of either, got {named(other)}")


def _one_of_many(prompt: object, field: str, *, add_special_tokens: bool) -> Prompt:
    match prompt:
        case str(text):
            return TextPrompt(text=text, add_special_tokens=add_special_tokens)
        case list(token_ids):
            return _token_prompt(token_ids, field)
        case other:
            raise InvalidParameter(field, f"must be a text or a list of token ids, got {named(other)}")


def _token_prompt(token_ids: list[Any], field: str) -> TokenPrompt:
    for i, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < 2**32:
            raise InvalidParameter(f"{field}[{i}]", f"must be a token id, got {token_id!r:.40}")
    return TokenPrompt(token_ids=tuple(token_ids))


def _message(message: Message, field: str) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=_content(message.content, f"{field}.content"),
        name=message.name,
        extras=MappingProxyType(message.model_extra or {}),
    )


def _content(content: object, field: str) -> str | None:
    match content:
        case None | str():
            return content
        case list(parts):
            return "\n".join(_text_of(part, f"{field}[{i}]") for i, part in enumerate(parts))
        case other:
            raise InvalidParameter(field, f"must be a text or a list of text parts, got {named(other)}")


def _text_of(part: object, field: str) -> str:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind not in _TEXT_PARTS:
            raise UnsupportedParameter(
                field, f"a part of type {kind[:40]!r} is not supported; this model reads text only"
            )
        case _:
            raise InvalidParameter(field, 'must be a text part such as {"type": "text", "text": "..."}')


def _stop_sequences(stop: object) -> tuple[str, ...]:
    match stop:
        case None | "":
            return ()
        case str(text):
            return (text,)
        case list(texts):
            for i, text in enumerate(texts):
                if not isinstance(text, str):
                    raise InvalidParameter(f"stop[{i}]", f"must be a text, got {named(text)}")
            return tuple(texts)
        case other:
            raise InvalidParameter("stop", f"must be a text or a list of texts, got {named(other)}")


def _logit_bias(by_text: Mapping[str, float]) -> Mapping[int, float]:
    bias: dict[int, float] = {}
    for text, value in by_text.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32):
            raise InvalidParameter("logit_bias", f"keys must be token ids, got {text[:40]!r}")
        bias[int(text)] = value
    return MappingProxyType(bias)
