"""What is not supported is refused by name, and only when it asks for something."""

from typing import Any

import pytest

from gateway.core.limits import UnsupportedParameter
from gateway.openai.protocol import ChatCompletionBody, CompletionBody
from gateway.openai.refusals import refuse_unsupported

TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "hi"}]} | fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "json"),
        ("tools", [TOOL]),
        ("tool_choice", "required"),
        ("tool_choice", TOOL),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 3),
        ("guided_json", {"type": "object"}),
        ("guided_choice", ["a"]),
        ("guided_regex", "a+"),
        ("guided_grammar", "root"),
        ("structured_outputs", {"regex": "a"}),
        ("echo", True),
        ("best_of", 2),
        ("suffix", "x"),
        ("allowed_token_ids", [1]),
        ("bad_words", ["x"]),
        ("use_beam_search", True),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {"a": 1}),
        ("chat_template", "{{ x }}"),
        ("documents", [{}]),
        ("add_special_tokens", True),
        ("logits_processors", ["x"]),
        ("prompt_embeds", "AAAA"),
        ("return_tokens_as_token_ids", True),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: Any):
    with pytest.raises(UnsupportedParameter) as refused:
        refuse_unsupported(chat(**{field: value}))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "tools": None, "tool_choice": None},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [TOOL], "tool_choice": "none"},
        {"functions": [], "function_call": "none"},
        {"echo": False, "best_of": 1, "suffix": "", "use_beam_search": False, "prompt_logprobs": None},
        {"modalities": ["text"], "add_special_tokens": False},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "reasoning_effort": "low"},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]):
    refuse_unsupported(chat(**fields))


def test_text_completions_are_checked_too():
    with pytest.raises(UnsupportedParameter, match="echo"):
        refuse_unsupported(CompletionBody.model_validate({"prompt": "a", "echo": True}))
    refuse_unsupported(CompletionBody.model_validate({"prompt": "a", "add_special_tokens": True}))
