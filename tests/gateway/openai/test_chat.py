"""POST /v1/chat/completions through the application."""

import re
from typing import Any

import pytest

from gateway.config import GatewayConfig, Limits
from gateway.core.generation import ChatPrompt, TokenPrompt
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import CHAT, client, events, post

PATH = "/v1/chat/completions"
USAGE = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}


async def chat(fake: FakeGenerator | None = None, settings: GatewayConfig | None = None, **fields: Any) -> Any:
    response = await post(fake or FakeGenerator(), PATH, CHAT | fields, settings)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(fake: FakeGenerator | None = None, settings: GatewayConfig | None = None, **fields: Any) -> list[Any]:
    response = await post(fake or FakeGenerator(), PATH, CHAT | {"stream": True} | fields, settings)
    assert response.status_code == 200, response.text
    return events(response.text)


async def test_a_whole_answer_is_openais_object():
    answer = await chat()
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", answer.pop("id"))
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").startswith("fp_")
    message = {"role": "assistant", "content": "Hello world", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer == {"object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason():
    chunks = await stream()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hello"}, {"content": " world"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


async def test_id_and_creation_time_are_the_same_in_every_chunk():
    chunks = await stream()
    assert len({(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
async def test_no_usage_in_a_stream_unless_asked_for(options: Any):
    chunks = await stream(stream_options=options)
    assert not any("usage" in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


async def test_usage_asked_for_comes_once_and_last_without_choices():
    chunks = await stream(stream_options={"include_usage": True})
    assert [chunk.get("usage") for chunk in chunks] == [None, None, None, None, USAGE]
    assert chunks[-1]["choices"] == []


async def test_the_server_can_force_usage_into_every_stream():
    chunks = await stream(settings=GatewayConfig(enable_force_include_usage=True))
    assert chunks[-1]["usage"] == USAGE


async def test_continuous_usage_counts_up_in_every_chunk_with_text():
    chunks = await stream(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]
    assert counts == [1, 2, 2, 2]
    assert chunks[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


async def test_n_answers_whole_and_streamed():
    answer = await chat(n=2)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "Hello world"),
        (1, "Hello world"),
    ]
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 2
    chunks = await stream(n=2)
    reasons = {(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in chunks}
    assert {(0, "stop"), (1, "stop")} <= reasons
    for index in (0, 1):
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(delta.get("content", "") for delta in deltas) == "Hello world"
        assert deltas[0]["role"] == "assistant"


async def test_logprobs_whole_and_streamed():
    whole = (await chat(logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in whole] == ["Hello", " world"]
    assert whole[0]["top_logprobs"][1] == {"token": r"\xe2\x82", "logprob": -9999.0, "bytes": [0xE2, 0x82]}
    chunks = await stream(logprobs=True, top_logprobs=2)
    told = [c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for content in told for entry in content] == whole


async def test_a_stop_sequence_is_told():
    answer = await chat(FakeGenerator(stop_sequence="END"))
    assert answer["choices"][0]["stop_reason"] == "END"


async def test_max_tokens_reached_is_length():
    answer = await chat(max_completion_tokens=1)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 1)


async def test_token_ids_are_told_when_asked_for():
    fake = FakeGenerator()
    answer = await chat(fake, return_token_ids=True)
    assert answer["prompt_token_ids"] == list(b"hi")
    assert answer["choices"][0]["token_ids"] == [65, 65]
    chunks = await stream(return_token_ids=True)
    assert chunks[1]["choices"][0]["token_ids"] == [65]


async def test_a_truncated_prompt_keeps_its_last_tokens():
    fake = FakeGenerator()
    await chat(fake, truncate_prompt_tokens=1)
    assert fake.calls[0][0].prompt == TokenPrompt(token_ids=(ord("i"),))


async def test_the_request_reaches_the_generator():
    fake = FakeGenerator()
    fields: dict[str, Any] = {
        "model": "alias",
        "cache_salt": "s",
        "request_id": "mine",
        "skip_special_tokens": False,
        "session_id": "x",
    }
    answer = await chat(fake, **fields, priority=-3, temperature=0, seed=5, stop="END", top_k=4)
    ((request, _),) = fake.calls
    assert isinstance(request.prompt, ChatPrompt)
    assert (request.model, request.cache_salt, request.client_request_id) == ("alias", "s", "mine")
    assert (request.priority, request.skip_special_tokens) == (-3, False)
    assert (request.sampling.temperature, request.sampling.seed, request.sampling.top_k) == (0, 5, 4)
    assert (request.stopping.stop_sequences, request.stopping.max_tokens) == (("END",), None)
    assert request.deadline_s is None
    assert (answer["id"], answer["model"]) == ("chatcmpl-mine", "m")


@pytest.mark.parametrize("header", ["x-tenant-id", "x-gateway-inference-fairness-id", "X-LLM-D-Inference-Fairness-Id"])
async def test_the_tenant_comes_from_a_header(header: str):
    fake = FakeGenerator()
    async with client(fake) as http:
        await http.post(PATH, json=CHAT, headers={header: "acme", "x-priority": "7", "x-request-id": "trace-me"})
    ((request, _),) = fake.calls
    assert (request.tenant, request.priority, request.correlation_id) == ("acme", 7, "trace-me")


@pytest.mark.parametrize("header", ["x-request-timeout-ms", "X-Envoy-Expected-Rq-Timeout-Ms"])
async def test_the_deadline_comes_from_a_header(header: str):
    fake = FakeGenerator()
    async with client(fake) as http:
        await http.post(PATH, json=CHAT, headers={header: "2500"})
    ((request, _),) = fake.calls
    assert request.deadline_s == 2.5


@pytest.mark.parametrize(
    "headers",
    [
        {"x-priority": "high"},
        {"x-priority": "3000000000"},
        {"x-tenant-id": "t" * 257},
        {"x-request-timeout-ms": "soon"},
        {"x-request-timeout-ms": "0"},
        {"x-request-timeout-ms": "inf"},
        {"x-envoy-expected-rq-timeout-ms": "-5"},
    ],
)
async def test_a_bad_header_is_named(headers: dict[str, str]):
    async with client(FakeGenerator()) as http:
        response = await http.post(PATH, json=CHAT, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(headers))


async def test_timing_is_a_header_and_an_object_for_those_who_ask():
    async with client(FakeGenerator()) as http:
        plain = await http.post(PATH, json=CHAT)
        asked = await http.post(PATH, json=CHAT, headers={"x-octavo-metrics": "true"})
        streamed = await http.post(PATH, json=CHAT | {"stream": True}, headers={"x-octavo-metrics": "1"})
    assert plain.headers["server-timing"].startswith("queue;dur=100.000, prefill;dur=200.000")
    assert "metrics" not in plain.json()
    assert asked.json()["metrics"]["time_to_first_token_s"] == 0.3
    assert events(streamed.text)[-1]["metrics"]["num_preemptions"] == 1


async def test_too_many_answers_are_refused_before_anything_is_made():
    fake = FakeGenerator()
    response = await post(fake, PATH, CHAT | {"n": 2_000_000_000}, GatewayConfig(limits=Limits(max_choices=4)))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert not fake.calls


async def test_stream_options_without_a_stream_are_harmless():
    assert (await chat(stream_options={"include_usage": True}))["usage"] == USAGE
