"""What this server cannot honour yet: named and refused, never ignored.

Pure: looks at a body, raises UnsupportedParameter for the first field that asks for something.
"""

from typing import Any

from gateway.core.limits import UnsupportedParameter
from gateway.openai.protocol import ChatCompletionBody, GenerationBody

_NOT_YET = {
    "allowed_token_ids": "token allow lists are not supported",
    "audio": "only text is generated",
    "bad_words": "word block lists are not supported",
    "chat_template": "a chat template of the request's own is not supported; the model's is used",
    "documents": "documents are not supported; put them into a message",
    "echo": "the prompt cannot be echoed yet",
    "functions": "function calls are not supported yet",
    "guided_choice": "structured output is not supported yet",
    "guided_grammar": "structured output is not supported yet",
    "guided_json": "structured output is not supported yet",
    "guided_regex": "structured output is not supported yet",
    "logits_processors": "logits processors are not supported",
    "prompt_embeds": "prompts are text or token ids",
    "prompt_logprobs": "logprobs of the prompt are not supported yet",
    "return_tokens_as_token_ids": "not supported; use return_token_ids",
    "structured_outputs": "structured output is not supported yet",
    "suffix": "text after the insertion point is not supported",
    "use_beam_search": "beam search is not supported",
    "web_search_options": "web search is not supported",
}


def refuse_unsupported(body: GenerationBody) -> None:
    """Raise UnsupportedParameter, naming the field, if `body` asks for what this server cannot do."""
    for field, reason in _NOT_YET.items():
        value = getattr(body, field, None)
        if not _asks_for_nothing(value):
            raise UnsupportedParameter(field, f"{reason}; leave it out")
    if not (_asks_for_nothing(body.best_of) or body.best_of == 1):
        raise UnsupportedParameter("best_of", f"only 1 is supported, got {body.best_of!r}; ask for n answers instead")
    _refuse_format(body.response_format)
    if isinstance(body, ChatCompletionBody):
        _refuse_tools(body)
        _refuse_chat_extras(body)


def _asks_for_nothing(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _refuse_format(response_format: Any) -> None:
    if _asks_for_nothing(response_format) or response_format == {"type": "text"}:
        return
    kind = response_format.get("type") if isinstance(response_format, dict) else response_format
    raise UnsupportedParameter("response_format", f"only type 'text' is supported yet, got {kind!r}; leave it out")


def _refuse_tools(body: ChatCompletionBody) -> None:
    if not (_asks_for_nothing(body.tools) or body.tool_choice == "none"):
        raise UnsupportedParameter(
            "tools", "tool calls are not supported yet; leave it out or set tool_choice to 'none'"
        )
    for field, value in (("tool_choice", body.tool_choice), ("function_call", body.function_call)):
        if not (_asks_for_nothing(value) or value in ("none", "auto")):
            raise UnsupportedParameter(field, "tool calls are not supported yet; only 'none' is")


def _refuse_chat_extras(body: ChatCompletionBody) -> None:
    if not (_asks_for_nothing(body.modalities) or body.modalities == ["text"]):
        raise UnsupportedParameter("modalities", f"only ['text'] is supported, got {body.modalities!r}")
    if body.add_special_tokens:
        raise UnsupportedParameter("add_special_tokens", "the chat template writes the special tokens; leave it out")
