"""Streams over a real HTTP server: errors in the middle, silence, clients that leave or stop reading."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import grpc
import httpx
import pytest

from gateway.config import GatewayConfig, Limits
from gateway.openai.streaming import EventStream, EventWriter
from octavo import telemetry
from octavo.errors import Failed, Failure
from tests.fakes.generator import FakeGenerator
from tests.fakes.otlp_receiver import OtlpReceiver
from tests.gateway.openai.servers import CHAT, events, post, until, uvicorn_serving

PATH = "/v1/chat/completions"
STREAM = CHAT | {"stream": True}
NO_WORKER = Failed(
    Failure(code=grpc.StatusCode.UNAVAILABLE, reason="NO_WORKER", message="no worker for 30 s", retry_after_s=1.0)
)


async def leave(fake: FakeGenerator, call: Coroutine[Any, Any, httpx.Response], *, num_calls: int = 1) -> None:
    """Hang up as soon as the generations have begun."""
    calling = asyncio.create_task(call)
    await until(lambda: len(fake.calls) == num_calls)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def idle(http: httpx.AsyncClient, url: str) -> None:
    """Return when the server counts no request."""
    async with asyncio.timeout(5):
        while (await http.get(url + "/load")).json()["server_load"]:
            pass


async def test_an_error_after_the_first_byte_is_an_event_and_then_done():
    response = await post(FakeGenerator(error=NO_WORKER, error_at=1), PATH, STREAM)
    assert response.status_code == 200
    *chunks, last = events(response.text)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "Hello"]
    expected = {"message": "no worker for 30 s", "type": "server_error", "param": None, "code": "no_worker"}
    assert last == {"error": expected}


async def test_a_bug_after_the_first_byte_is_an_event_too(caplog: pytest.LogCaptureFixture):
    response = await post(FakeGenerator(error=ZeroDivisionError("secret"), error_at=1), PATH, STREAM)
    error = events(response.text)[-1]["error"]
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    assert [record.getMessage() for record in caplog.records] == ["http_request_failed"]


async def test_an_error_after_the_first_byte_of_several_prompts_ends_them_all():
    fake = FakeGenerator(error=NO_WORKER, error_at=1)
    response = await post(fake, "/v1/completions", {"prompt": ["a", "b"], "stream": True})
    assert "error" in events(response.text)[-1]


async def test_a_stream_is_not_buffered_and_says_so():
    async with (
        uvicorn_serving(FakeGenerator(texts=("a",) * 20, delay_s=0.02)) as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", PATH, json=STREAM) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        pieces = [piece async for piece in response.aiter_raw()]
    assert len(pieces) > 15, "every event is a write of its own"


async def test_silence_is_broken_by_comments_before_and_between_tokens():
    settings = GatewayConfig(limits=Limits(keepalive_s=0.03))
    response = await post(FakeGenerator(delay_s=0.3), PATH, STREAM, settings)
    begun = response.text.index("data: ")
    assert response.text[:begun].count(": keep-alive\n\n") >= 2
    assert response.text[begun:].count(": keep-alive\n\n") >= 2
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in events(response.text)) == "Hello world"


async def test_an_error_after_a_comment_is_an_event():
    settings = GatewayConfig(limits=Limits(keepalive_s=0.02))
    response = await post(FakeGenerator(delay_s=0.3, error=NO_WORKER), PATH, STREAM, settings)
    assert response.status_code == 200
    assert events(response.text)[0]["error"]["code"] == "no_worker"


async def test_no_comments_when_they_are_off():
    settings = GatewayConfig(limits=Limits(keepalive_s=0))
    response = await post(FakeGenerator(delay_s=0.05), PATH, STREAM, settings)
    assert ":" not in {line[:1] for line in response.text.splitlines()}


@pytest.mark.parametrize("num_lines", [1, 8])
async def test_a_client_that_leaves_its_stream_cancels_the_generation(num_lines: int):
    fake = FakeGenerator(texts=("a",) * 1000, delay_s=0.01)
    async with uvicorn_serving(fake) as url, httpx.AsyncClient() as http:
        async with http.stream("POST", url + PATH, json=STREAM) as response:
            lines = response.aiter_lines()
            for _ in range(num_lines):
                await anext(lines)
            assert (await http.get(url + "/load")).json() == {"server_load": 1, "running": 1, "waiting": 0}
        await until(lambda: fake.num_cancelled == 1)
        await idle(http, url)


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_client_that_leaves_before_its_answer_cancels_the_generation(body: dict[str, Any]):
    fake = FakeGenerator(delay_s=60)
    async with uvicorn_serving(fake) as url, httpx.AsyncClient() as http:
        await leave(fake, http.post(url + PATH, json=body))
        await until(lambda: fake.num_cancelled == 1)
        await idle(http, url)


async def test_a_client_that_leaves_cancels_every_prompt():
    fake = FakeGenerator(delay_s=60)
    async with uvicorn_serving(fake) as url, httpx.AsyncClient() as http:
        await leave(fake, http.post(url + "/v1/completions", json={"prompt": ["a", "b", "c"]}), num_calls=3)
        await until(lambda: fake.num_cancelled == 3)


async def test_a_client_that_stops_reading_is_given_up():
    fake = FakeGenerator(texts=("x" * 100_000,) * 1000)
    settings = GatewayConfig(limits=Limits(stalled_client_s=0.1, keepalive_s=0.05))
    async with uvicorn_serving(fake, settings) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as lazy:
            body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            lazy.sendall(head + body)
            await until(lambda: fake.num_cancelled == 1)


async def test_a_client_that_leaves_shows_in_the_span(monkeypatch: pytest.MonkeyPatch):
    fake = FakeGenerator(delay_s=60)
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with telemetry.configured("gateway"):
            async with uvicorn_serving(fake) as url, httpx.AsyncClient() as http:
                await leave(fake, http.post(url + PATH, json=CHAT))
                await until(lambda: fake.num_cancelled == 1)
        (span,) = receiver.spans
    assert span.events == ["client_cancelled"]
    assert (span.attributes["http.response.status_code"], span.status) == (499, "UNSET")


async def test_64_streams_at_once_are_not_mixed_up():
    fake = FakeGenerator(texts=("<{prompt}", "|", "{prompt}>"), delay_s=0.002)
    async with uvicorn_serving(fake) as url, httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as http:

        async def one(number: int) -> str:
            body = {"messages": [{"role": "user", "content": f"no {number}"}], "stream": True}
            chunks = events((await http.post(url + PATH, json=body)).text)
            assert len({chunk["id"] for chunk in chunks}) == 1
            return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

        texts = await asyncio.gather(*(one(number) for number in range(64)))
    assert texts == [f"<no {number}|no {number}>" for number in range(64)]
    assert fake.num_cancelled == 0


async def test_nothing_is_sent_after_the_last_frame():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    writer = EventWriter(send, {})
    await writer.write("data: 1\n\n")
    await writer.write("data: [DONE]\n\n", is_last=True)
    await writer.write(": keep-alive\n\n")
    assert [message.get("more_body") for message in sent] == [None, True, False]


async def test_a_watcher_does_not_outlive_its_stream():
    async def produce(writer: EventWriter) -> str:
        await writer.write("data: 1\n\n")
        return ""

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    before = asyncio.all_tasks()
    await EventStream(produce, keepalive_s=15, headers={})({}, receive, send)
    assert asyncio.all_tasks() == before
