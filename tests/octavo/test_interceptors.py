"""What surrounds every RPC: rich errors, and a span with the status that the client got."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from octavo import client, errors, server, telemetry
from tests.fakes.otlp_receiver import OtlpReceiver, SpanRecord
from tests.octavo.echo_service import NAME, STATUSES, Channel, EchoService

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ECHO, COUNT, SESSION = f"/{NAME}/Echo", f"/{NAME}/Count", f"/{NAME}/Session"


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
async def running(service: EchoService) -> AsyncIterator[server.Running]:
    async with server.started("127.0.0.1:0", service.register, STATUSES, service_names=[NAME]) as running:
        yield running


@pytest.fixture
async def channel(running: server.Running) -> AsyncIterator[Channel]:
    async with client.channel(running.address) as channel:
        yield channel


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """Tracing is on; read spans after leaving `telemetry.configured`."""
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


async def failure_of(call: "grpc.aio.UnaryUnaryCall[bytes, bytes]") -> errors.Failure:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return errors.from_rpc_error(failed.value)


async def ended(running: server.Running) -> None:
    """The client knows the status before the server's handler has ended."""
    await asyncio.wait_for(running.calls.idle(), 5)


async def test_a_domain_exception_reaches_the_client_as_a_rich_error(channel: Channel):
    assert await failure_of(channel.unary_unary(ECHO)(b"not here")) == errors.Failure(
        code=grpc.StatusCode.NOT_FOUND,
        reason="NOT_HERE",
        message="request 7 holds no blocks",
        metadata={"asked": "7"},
    )


async def test_a_bug_is_internal_with_an_id_and_without_a_word_about_the_inside(
    channel: Channel, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR):
        failure = await failure_of(channel.unary_unary(ECHO)(b"crash", metadata=(("x-request-id", "req-1"),)))
    assert (failure.code, failure.reason, failure.metadata["request_id"]) == (
        grpc.StatusCode.INTERNAL,
        "INTERNAL",
        "req-1",
    )
    assert "secret" not in failure.message
    assert "/secret/path" in caplog.text


async def test_what_a_handler_aborts_by_hand_stays_as_it_is(channel: Channel):
    failure = await failure_of(channel.unary_unary(ECHO)(b"abort"))
    assert (failure.code, failure.message) == (grpc.StatusCode.ALREADY_EXISTS, "by hand")


@pytest.mark.parametrize("method", ["Count", "CountByWrite"])
async def test_streaming_handlers_of_both_styles_stream_and_fail_richly(channel: Channel, method: str):
    stream = channel.unary_stream(f"/{NAME}/{method}")
    assert [message async for message in stream(b"")] == [b"1", b"2"]
    failing = stream(b"not here")
    assert await failing.read() == b"1"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await failing.read()
    assert errors.from_rpc_error(failed.value).reason == "NOT_HERE"


async def test_a_long_stream_fails_richly_too(channel: Channel):
    call = channel.stream_stream(SESSION)()
    await call.write(b"hello")
    assert await call.read() == b"hello"
    await call.write(b"not here")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert errors.from_rpc_error(failed.value).reason == "NOT_HERE"


async def test_a_broken_invariant_is_internal_to_the_client_and_known_to_the_process(
    channel: Channel, running: server.Running
):
    assert (await failure_of(channel.unary_unary(ECHO)(b"broken"))).reason == "INTERNAL"
    assert str(await asyncio.wait_for(running.broken, 1)) == "2 != 3"


async def test_when_the_client_cancels_the_generator_ends_at_once(channel: Channel, service: EchoService):
    call = channel.unary_stream(COUNT)(b"wait")
    assert await call.read() == b"1"
    call.cancel()
    await asyncio.wait_for(service.cancelled.wait(), 5)


async def spans_of(receiver: OtlpReceiver, kind: str) -> list[SpanRecord]:
    return [span for span in receiver.spans if span.kind == kind]


async def test_a_unary_call_is_a_server_span_below_the_clients(
    channel: Channel, running: server.Running, receiver: OtlpReceiver
):
    with telemetry.configured("gateway"):
        with telemetry.span("request") as request:
            assert await channel.unary_unary(ECHO)(b"hi") == b"hi"
        await ended(running)
    (server_span,) = await spans_of(receiver, "SERVER")
    (client_span,) = await spans_of(receiver, "CLIENT")
    assert server_span.parent_span_id == client_span.span_id
    assert client_span.parent_span_id == f"{request.get_span_context().span_id:016x}"
    assert server_span.name == f"{NAME}/Echo"
    assert server_span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": f"{NAME}/Echo",
        "rpc.status_code": "OK",
    }


@pytest.mark.parametrize(
    ("request_bytes", "code", "status"),
    [(b"not here", "NOT_FOUND", "UNSET"), (b"abort", "ALREADY_EXISTS", "UNSET"), (b"crash", "INTERNAL", "ERROR")],
)
async def test_a_failed_call_shows_its_code_and_only_the_servers_faults_as_errors(
    channel: Channel,
    running: server.Running,
    receiver: OtlpReceiver,
    request_bytes: bytes,
    code: str,
    status: str,
):
    with telemetry.configured("gateway"):
        await failure_of(channel.unary_unary(ECHO)(request_bytes))
        await ended(running)
    (span,) = await spans_of(receiver, "SERVER")
    assert (span.attributes["rpc.status_code"], span.status, span.events) == (code, status, [])


async def test_a_cancelled_stream_is_recorded_as_cancelled(
    channel: Channel, running: server.Running, receiver: OtlpReceiver
):
    with telemetry.configured("gateway"):
        call = channel.unary_stream(COUNT)(b"wait", timeout=30)
        await call.read()
        call.cancel()
        await ended(running)
    (span,) = await spans_of(receiver, "SERVER")
    assert (span.attributes["rpc.status_code"], span.status) == ("CANCELLED", "UNSET")
    assert span.events == ["client_cancelled"]


@pytest.mark.parametrize("timeout_s", [0.05, 0.3])
async def test_a_passed_deadline_is_recorded_as_such(
    channel: Channel, running: server.Running, receiver: OtlpReceiver, timeout_s: float
):
    with telemetry.configured("gateway"):
        failure = await failure_of(channel.unary_unary(ECHO)(b"wait", timeout=timeout_s))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await ended(running)
    (span,) = await spans_of(receiver, "SERVER")
    assert (span.attributes["rpc.status_code"], span.status) == ("DEADLINE_EXCEEDED", "ERROR")
    assert span.events == ["deadline_exceeded"]


async def test_a_long_stream_makes_no_span(channel: Channel, receiver: OtlpReceiver):
    with telemetry.configured("gateway"):
        call = channel.stream_stream(SESSION)()
        await call.write(b"hello")
        await call.done_writing()
        assert [message async for message in call] == [b"hello"]
    assert receiver.spans == []


async def test_without_tracing_the_callers_context_still_passes_through(channel: Channel, service: EchoService):
    parent = telemetry.context_from_traceparent(TRACEPARENT)
    with telemetry.use(telemetry.start_span("request", parent=parent)):
        await channel.unary_unary(ECHO)(b"hi")
    assert service.seen == parent


async def test_a_traced_call_that_is_cancelled_takes_the_rpc_with_it(channel: Channel, service: EchoService):
    parent = telemetry.context_from_traceparent(TRACEPARENT)
    with telemetry.use(telemetry.start_span("request", parent=parent)):
        call = channel.unary_unary(ECHO)(b"wait")
        await asyncio.wait_for(service.entered.wait(), 5)
        call.cancel()
        await asyncio.wait_for(service.cancelled.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await call
