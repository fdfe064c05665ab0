"""Which requests are allowed, and how a refusal reads."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gateway.core import limits
from gateway.core.generation import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
)

BOUNDS = limits.RequestLimits(vocab_size=100, max_choices=4, max_stop_sequences=2)
OK = GenerationRequest(prompt=TextPrompt(text="hello"))
HI = ChatMessage(role="user", content="hi")


def refused_field(request: GenerationRequest) -> str | None:
    with pytest.raises(limits.InvalidParameter) as refusal:
        limits.check(request, BOUNDS)
    return refusal.value.field


@pytest.mark.parametrize(
    ("field", "bad_values"),
    [
        ("temperature", [-0.1, 2.1, math.nan, math.inf]),
        ("top_p", [0.0, -1.0, 1.1, math.nan]),
        ("top_k", [-2]),
        ("min_p", [-0.1, 1.1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("repetition_penalty", [0.0, -1.0, 1e-300, 1e300, math.nan, math.inf]),
        ("seed", [2**64, -(2**63) - 1]),
    ],
)
def test_sampling_outside_its_range_is_refused_by_name(field: str, bad_values: list[float]):
    for value in bad_values:
        given: dict[str, Any] = {field: value}
        assert refused_field(replace(OK, sampling=Sampling(**given))) == field


def test_the_ends_of_every_range_are_allowed():
    low = Sampling(
        temperature=0, top_p=1e-6, top_k=-1, min_p=0, presence_penalty=-2, frequency_penalty=-2, seed=-(2**63),
        repetition_penalty=2.0**-126,
    )  # fmt: skip
    high = Sampling(
        temperature=2, top_p=1, top_k=10**6, min_p=1, presence_penalty=2, frequency_penalty=2, seed=2**64 - 1
    )
    for sampling in (low, high):
        limits.check(replace(OK, sampling=sampling, n=4, num_logprobs=20), BOUNDS)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (replace(OK, prompt=TextPrompt(text="")), "prompt"),
        (replace(OK, prompt=TextPrompt(text="a\ud800")), "prompt"),
        (replace(OK, prompt=TokenPrompt(token_ids=(5, 100))), "prompt"),
        (replace(OK, prompt=ChatPrompt(messages=())), "messages"),
        (replace(OK, prompt=ChatPrompt(messages=(HI,), continue_final_message=True)), "continue_final_message"),
        (replace(OK, prompt=ChatPrompt(messages=(ChatMessage(role="user", content="\udc00"),))), "messages[0].content"),
        (replace(OK, n=0), "n"),
        (replace(OK, n=5), "n"),
        (replace(OK, num_logprobs=21), "top_logprobs"),
        (replace(OK, priority=2**31), "priority"),
        (replace(OK, client_request_id="x" * 257), "request_id"),
        (replace(OK, stopping=Stopping(max_tokens=0)), "max_tokens"),
        (replace(OK, stopping=Stopping(max_tokens=3, min_tokens=4)), "min_tokens"),
        (replace(OK, stopping=Stopping(stop_sequences=("",))), "stop: length of a sequence"),
        (replace(OK, stopping=Stopping(stop_sequences=("a", "b", "c"))), "stop"),
        (replace(OK, stopping=Stopping(stop_token_ids=(100,))), "stop_token_ids"),
        (replace(OK, sampling=Sampling(logit_bias={100: 1.0})), "logit_bias"),
        (replace(OK, sampling=Sampling(logit_bias={1: 101.0})), "logit_bias[1]"),
    ],
)
def test_the_wrong_field_is_named(request_: GenerationRequest, field: str):
    assert refused_field(request_) == field


def test_max_tokens_is_what_the_context_has_room_for():
    assert limits.max_new_tokens(10, requested=None, max_model_len=64) == 54
    assert limits.max_new_tokens(10, requested=5, max_model_len=64) == 5
    assert limits.max_new_tokens(10, requested=500, max_model_len=64) == 54


def test_a_prompt_that_fills_the_context_is_refused_in_openais_words_with_every_number():
    with pytest.raises(
        limits.ContextLengthExceeded, match="This model's maximum context length is 64 tokens"
    ) as refusal:
        limits.max_new_tokens(64, requested=7, max_model_len=64)
    assert refusal.value.metadata == {"limit": "64", "prompt_tokens": "64", "max_tokens": "7", "max_allowed": "0"}


def test_an_unknown_model_is_told_which_there_are():
    assert str(limits.UnknownModel("gpt-5", ["a", "b"])) == "The model 'gpt-5' does not exist; served are: a, b"
