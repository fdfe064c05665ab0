"""POST /v1/completions through the application."""

from typing import Any

import pytest

from gateway.config import GatewayConfig, Limits
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import events, post

PATH = "/v1/completions"
ECHO = ("<{prompt}>", "!")


async def complete(fake: FakeGenerator | None = None, **fields: Any) -> Any:
    response = await post(fake or FakeGenerator(), PATH, {"prompt": "ab"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_whole_answer_is_openais_object():
    answer = await complete()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    choice = {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer["choices"] == [choice]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


async def test_a_stream_has_no_role_and_ends_with_the_reason():
    response = await post(FakeGenerator(), PATH, {"prompt": "ab", "stream": True})
    choices = [chunk["choices"][0] for chunk in events(response.text)]
    assert [choice["text"] for choice in choices] == ["Hello", " world", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["<ab>!"]),
        (["a", "b"], ["<a>!", "<b>!"]),
        ([97, 98], ["<ab>!"]),
        ([[97], [98]], ["<a>!", "<b>!"]),
    ],
)
async def test_every_form_of_prompt(prompt: Any, texts: list[str]):
    answer = await complete(FakeGenerator(texts=ECHO), prompt=prompt)
    assert [choice["text"] for choice in answer["choices"]] == texts


async def test_several_prompts_with_n_answers_are_numbered_prompt_by_prompt():
    answer = await complete(FakeGenerator(texts=ECHO), prompt=["a", "b"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["<a>!", "<a>!", "<b>!", "<b>!"]
    usage = {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    assert answer["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 2}}


async def test_streams_of_several_prompts_are_whole_each():
    body = {"prompt": ["a", "b", "c"], "stream": True, "stream_options": {"include_usage": True}}
    chunks = events((await post(FakeGenerator(texts=ECHO, delay_s=0.001), PATH, body)).text)
    assert chunks[-1]["usage"]["prompt_tokens"] == 3
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    for index, prompt in enumerate("abc"):
        assert "".join(choice["text"] for choice in choices if choice["index"] == index) == f"<{prompt}>!"
    assert sum(choice["finish_reason"] is not None for choice in choices) == 3


async def test_the_default_is_sixteen_tokens_and_both_names_are_honoured():
    fake = FakeGenerator(texts=("x",) * 20)
    assert (await complete(fake))["usage"]["completion_tokens"] == 16
    assert (await complete(fake, max_tokens=18))["usage"]["completion_tokens"] == 18
    assert (await complete(fake, max_completion_tokens=19))["usage"]["completion_tokens"] == 19


async def test_logprobs_whole_and_streamed_are_the_same():
    whole = (await complete(logprobs=2))["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["Hello", " world"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [
            {"Hello": -0.5, r"bytes:\xe2\x82": -9999.0},
            {" world": -0.5, r"bytes:\xe2\x82": -9999.0},
        ],
        "text_offset": [0, 5],
    }
    response = await post(FakeGenerator(), PATH, {"prompt": "ab", "stream": True, "logprobs": 2})
    told = [chunk["choices"][0]["logprobs"] for chunk in events(response.text)]
    joined = {key: [value for part in told if part for value in part[key]] for key in whole}
    assert joined == whole


async def test_token_ids_are_in_the_choices():
    choice = (await complete(return_token_ids=True, prompt=["a", "bc"]))["choices"][1]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([98, 99], [65, 65])


async def test_the_requests_of_several_prompts_have_ids_of_their_own():
    fake = FakeGenerator()
    await complete(fake, prompt=["a", "b"], request_id="mine")
    assert {request.client_request_id for request, _ in fake.calls} == {"mine-0", "mine-1"}
    assert len({request.correlation_id for request, _ in fake.calls}) == 2


async def test_too_many_prompts_are_refused_with_the_numbers():
    settings = GatewayConfig(limits=Limits(max_choices=3))
    response = await post(FakeGenerator(), PATH, {"prompt": ["a", "b"], "n": 2}, settings)
    assert response.status_code == 400
    assert "at most 3 answers a request, got 2 prompts times 2" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_one_prompt_that_fails_fails_the_call_and_cancels_the_others(is_stream: bool):
    fake = FakeGenerator(delay_s=0.02)
    response = await post(fake, PATH, {"prompt": ["ok", "x" * 70], "stream": is_stream})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert fake.num_cancelled == 1
