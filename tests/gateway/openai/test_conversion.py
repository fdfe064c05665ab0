"""What a body asks for."""

from typing import Any

import pytest

from gateway.core.generation import ChatMessage, TextPrompt, TokenPrompt
from gateway.core.limits import InvalidParameter, UnsupportedParameter
from gateway.openai import conversion
from gateway.openai.protocol import ChatCompletionBody, CompletionBody


def chat(**fields: Any) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "hi"}]} | fields)


def completion(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate(fields)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [TextPrompt(text="a")]),
        ("", [TextPrompt(text="")]),
        (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
        ([1, 2], [TokenPrompt(token_ids=(1, 2))]),
        ([[1, 2], [3]], [TokenPrompt(token_ids=(1, 2)), TokenPrompt(token_ids=(3,))]),
        (["a", [3]], [TextPrompt(text="a"), TokenPrompt(token_ids=(3,))]),
    ],
)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_either(prompt: Any, expected: Any):
    assert conversion.completion_prompts(completion(prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        ({"text": "a"}, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1, -2], "prompt[1]"),
        ([1, 2**32], "prompt[1]"),
        (["a", None], "prompt[1]"),
        ([[1], [2.5]], "prompt[1][0]"),
    ],
)
def test_a_prompt_of_another_type_is_refused_by_its_place(prompt: Any, field: str):
    with pytest.raises(InvalidParameter) as refused:
        conversion.completion_prompts(completion(prompt=prompt))
    assert refused.value.field == field


def test_add_special_tokens_reaches_every_text_prompt():
    prompts = conversion.completion_prompts(completion(prompt=["a", "b"], add_special_tokens=False))
    assert [prompt.add_special_tokens for prompt in prompts if isinstance(prompt, TextPrompt)] == [False, False]


def test_text_parts_are_joined_and_other_message_fields_go_to_the_template():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "assistant", "content": parts, "name": "n", "tool_calls": []}])
    (message,) = conversion.chat_prompt(body).messages
    assert message == ChatMessage(role="assistant", content="a\nb", name="n", extras=message.extras)
    assert message.extras == {"tool_calls": []}


def test_content_may_be_null():
    (message,) = conversion.chat_prompt(chat(messages=[{"role": "assistant"}])).messages
    assert message.content is None


@pytest.mark.parametrize(
    ("content", "error", "field"),
    [
        (5, InvalidParameter, "messages[0].content"),
        ({"type": "text"}, InvalidParameter, "messages[0].content"),
        (["a"], InvalidParameter, "messages[0].content[0]"),
        ([{"type": "text", "text": 5}], InvalidParameter, "messages[0].content[0]"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], UnsupportedParameter, "messages[0].content[0]"),
    ],
)
def test_content_of_another_type_is_refused_by_its_place(content: Any, error: type[InvalidParameter], field: str):
    with pytest.raises(error) as refused:
        conversion.chat_prompt(chat(messages=[{"role": "user", "content": content}]))
    assert refused.value.field == field


def test_an_answer_is_begun_unless_the_last_message_is_continued():
    assert conversion.chat_prompt(chat()).add_generation_prompt
    continued = conversion.chat_prompt(chat(continue_final_message=True))
    assert (continued.add_generation_prompt, continued.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 0}, 0),
    ],
)
def test_max_tokens_under_both_names(fields: dict[str, int], expected: int | None):
    assert conversion.stopping(chat(**fields), None).max_tokens == expected
    assert conversion.stopping(completion(**fields), 16).max_tokens == (16 if expected is None else expected)


@pytest.mark.parametrize(
    ("stop", "expected"), [(None, ()), ("", ()), ("x", ("x",)), ([], ()), (["x", "y"], ("x", "y"))]
)
def test_stop_is_a_text_or_a_list(stop: Any, expected: tuple[str, ...]):
    assert conversion.stopping(completion(stop=stop), None).stop_sequences == expected


@pytest.mark.parametrize(("stop", "field"), [(5, "stop"), ({}, "stop"), (["x", 5], "stop[1]")])
def test_stop_of_another_type_is_refused(stop: Any, field: str):
    with pytest.raises(InvalidParameter) as refused:
        conversion.stopping(completion(stop=stop), None)
    assert refused.value.field == field


def test_stopping_takes_vllms_fields():
    body = completion(min_tokens=2, stop_token_ids=[3], ignore_eos=True, include_stop_str_in_output=True)
    stopping = conversion.stopping(body, None)
    assert (stopping.min_tokens, stopping.stop_token_ids) == (2, (3,))
    assert stopping.ignore_eos
    assert stopping.include_stop_sequence


def test_sampling_takes_every_field():
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "seed": -7,
    }
    sampling = conversion.sampling(chat(**given, logit_bias={"12": -5}))
    assert {name: getattr(sampling, name) for name in given} == given
    assert sampling.logit_bias == {12: -5.0}


def test_absent_sampling_fields_stay_absent():
    assert conversion.sampling(chat()) == conversion.sampling(chat(temperature=None, logit_bias=None))
    assert conversion.sampling(chat()).temperature is None


@pytest.mark.parametrize("key", ["x", "-1", "", "1.5", "²", "9" * 5000])
def test_logit_bias_wants_token_ids_as_keys(key: str):
    with pytest.raises(InvalidParameter, match="keys must be token ids"):
        conversion.sampling(chat(logit_bias={key: 1}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
    ],
)
def test_chat_logprobs(fields: dict[str, Any], expected: int | None):
    assert conversion.chat_num_logprobs(chat(**fields)) == expected


@pytest.mark.parametrize("given", [-1, 21])
def test_completion_logprobs_out_of_range_are_named_as_the_client_wrote_them(given: int):
    with pytest.raises(InvalidParameter) as refused:
        conversion.completion_num_logprobs(completion(prompt="a", logprobs=given))
    assert refused.value.field == "logprobs"


def test_top_logprobs_needs_logprobs():
    with pytest.raises(InvalidParameter, match="needs logprobs"):
        conversion.chat_num_logprobs(chat(top_logprobs=3))
