"""The real `openai` client against a real HTTP server."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import openai
import pytest
from openai import AsyncOpenAI

from gateway.config import GatewayConfig
from octavo.errors import Failed, Failure
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import until, uvicorn_serving

MESSAGES: Any = [{"role": "user", "content": "hi"}]
QUEUE_FULL = Failed(
    Failure(
        code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", message="the queue is full", retry_after_s=0.05
    )
)


@pytest.fixture
def fake() -> FakeGenerator:
    return FakeGenerator()


@pytest.fixture
async def client(fake: FakeGenerator) -> AsyncIterator[AsyncOpenAI]:
    async with (
        uvicorn_serving(fake, GatewayConfig()) as url,
        AsyncOpenAI(base_url=f"{url}/v1/", api_key="none", max_retries=0) as connected,
    ):
        yield connected


async def test_chat(client: AsyncOpenAI):
    answer = await client.chat.completions.create(model="m", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.content is not None
    assert answer.choices[1].logprobs.content[0].top_logprobs[0].token == "Hello"


async def test_chat_stream(client: AsyncOpenAI):
    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 4


async def test_completions_whole_and_streamed(client: AsyncOpenAI):
    answer = await client.completions.create(model="m", prompt=["a", "b"], logprobs=1)
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 5]
    stream = await client.completions.create(model="m", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_models(client: AsyncOpenAI):
    assert [model.id async for model in client.models.list()] == ["m", "alias"]
    assert (await client.models.retrieve("alias")).id == "alias"


async def test_vllms_extras_go_through_extra_body(client: AsyncOpenAI, fake: FakeGenerator):
    extra = {"top_k": 5, "ignore_eos": True, "min_tokens": 1}
    await client.chat.completions.create(model="m", messages=MESSAGES, extra_body=extra)
    ((request, _),) = fake.calls
    assert (request.sampling.top_k, request.stopping.ignore_eos, request.stopping.min_tokens) == (5, True, 1)


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "x"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "x" * 64}]}, openai.BadRequestError, "context_length_exceeded"),
    ],
)
async def test_mistakes_become_the_clients_own_exceptions(client: AsyncOpenAI, fields: Any, error: Any, code: str):
    for is_stream in (False, True):
        body = {"model": "m", "messages": MESSAGES, "stream": is_stream} | fields
        with pytest.raises(error) as raised:
            await client.chat.completions.create(**body)
        assert raised.value.code == code


async def test_a_full_queue_is_a_rate_limit_error_and_is_retried(client: AsyncOpenAI, fake: FakeGenerator):
    fake.error = QUEUE_FULL
    with pytest.raises(openai.RateLimitError):
        await client.with_options(max_retries=2).chat.completions.create(model="m", messages=MESSAGES)
    assert len(fake.calls) == 3


async def test_an_error_in_the_middle_of_a_stream_is_raised_with_its_message(client: AsyncOpenAI, fake: FakeGenerator):
    fake.error, fake.error_at = QUEUE_FULL, 1
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the queue is full"):
        _ = [chunk async for chunk in stream]


async def test_closing_a_stream_cancels_the_generation(client: AsyncOpenAI, fake: FakeGenerator):
    fake.texts, fake.delay_s = ("a",) * 1000, 0.01
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: fake.num_cancelled == 1)


async def test_the_responses_api_says_what_to_use(client: AsyncOpenAI):
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        await client.responses.create(model="m", input="hi")
