"""gRPC channels to other Octavo processes: limits, keepalive, reconnection, trace context, pauses between tries."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from opentelemetry.trace import Status, StatusCode

from octavo import telemetry, transport

RETRY_SCHEDULE_S = (0.1, 0.2, 0.5)  # pauses between tries; the last one repeats

OPTIONS: tuple[tuple[str, int], ...] = (
    *transport.OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted peer is found within 0.5 s
    ("grpc.min_reconnect_backoff_ms", 2_000),  # what a try to connect may take, despite the name: peers can be busy
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),  # peers are never behind the proxy that the environment may name
)


def retry_pause_s(num_tries: int) -> float:
    """How long to wait after a failed try that had `num_tries` failed ones before it."""
    return RETRY_SCHEDULE_S[min(num_tries, len(RETRY_SCHEDULE_S) - 1)]


def is_task_cancelled() -> bool:
    """Whether the running task was told to end. A CancelledError out of a call may also say that only the call was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def channel(target: str, *, options: Sequence[tuple[str, int | str]] = ()) -> grpc.aio.Channel:
    """A channel to `target` ("host:port", "unix:/path"); unary calls are traced and carry the trace context.

    `options` are added to ours. Nothing is dialled before the first call.
    """
    tracing: Any = TracingInterceptor()
    return grpc.aio.insecure_channel(target, options=(*OPTIONS, *options), interceptors=[tracing])


def own_channel(target: str) -> grpc.aio.Channel:
    """A channel whose connection no other channel shares: closing it leaves a connection that is only half open."""
    return channel(target, options=(("grpc.use_local_subchannel_pool", 1),))


class TracingInterceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Makes a CLIENT span around each unary call inside a trace; the context travels even when nothing is recorded."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        parent = telemetry.current_context()
        if parent is None:
            return await continuation(client_call_details, request)
        method = _text(client_call_details.method).lstrip("/")
        attributes = {"rpc.system.name": "grpc", "rpc.method": method}
        span = telemetry.start_span(method, parent=parent, kind="client", attributes=attributes)
        call = await continuation(_with_context(client_call_details, span.get_span_context()), request)
        code = grpc.StatusCode.CANCELLED
        try:
            code = await call.code()
        finally:
            call.cancel()  # changes nothing unless this task was cancelled: then the call must go too
            _end_span(span, code.name)
        return call


def _with_context(details: Any, context: telemetry.SpanContext) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata["traceparent"] = telemetry.traceparent(context)
    if context.trace_state:
        metadata["tracestate"] = context.trace_state.to_header()
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


def _end_span(span: telemetry.Span, code: str) -> None:
    span.set_attribute("rpc.status_code", code)
    if code != "OK":
        span.set_attribute("error.type", code)
        span.set_status(Status(StatusCode.ERROR, code))
    span.end()


def _text(method: str | bytes) -> str:
    return method.decode() if isinstance(method, bytes) else method
