"""gRPC channels to other Octavo processes: limits, keepalive, reconnection, trace context, waiting for a peer."""

import asyncio
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.trace import Status, StatusCode

from octavo import errors, logs, telemetry, transport

RETRY_SCHEDULE_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # pauses between tries; the last one repeats
TRY_TIMEOUT_S = 2.0
LOG_EVERY_S = 10.0

OPTIONS: tuple[tuple[str, int], ...] = (
    *transport.OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted peer is found within 2 s
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # peers are never behind the proxy that the environment may name
)

_targets: "weakref.WeakKeyDictionary[grpc.aio.Channel, str]" = weakref.WeakKeyDictionary()


def retry_pause_s(num_tries: int) -> float:
    """How long to wait after a failed try that had `num_tries` failed ones before it."""
    return RETRY_SCHEDULE_S[min(num_tries, len(RETRY_SCHEDULE_S) - 1)]


class PeerMissing(Exception):
    """Nobody answered at an address within the time allowed."""


def channel(target: str, *, options: Sequence[tuple[str, int | str]] = ()) -> grpc.aio.Channel:
    """A channel to `target` ("host:port", "unix:/path"); unary calls are traced and carry the trace context.

    `options` are added to ours. Nothing is dialled before the first call.
    """
    tracing: Any = TracingInterceptor()
    made = grpc.aio.insecure_channel(target, options=(*OPTIONS, *options), interceptors=[tracing])
    _targets[made] = target
    return made


async def wait_ready(channel: grpc.aio.Channel, name: str, *, log: logs.Logger, timeout_s: float | None = None) -> None:
    """Return when the service `name` ("" for the whole process) answers SERVING on `channel`.

    Tries at once, then after 0.1, 0.2, 0.5, 1 and every 2 s; logs who is expected where at the first failure and
    every 10 s. Without `timeout_s` it waits for ever, so that the order of starting does not matter; else it raises
    PeerMissing.
    """
    target = _targets.get(channel, "an unknown address")
    started_at = time.monotonic()
    logged_at = -LOG_EVERY_S
    num_tries = 0
    while (problem := await _problem(channel, name)) is not None:
        waited_s = time.monotonic() - started_at
        if timeout_s is not None and waited_s >= timeout_s:
            raise PeerMissing(f"{name or 'nobody'} at {target} after {waited_s:.1f} s: {problem}")
        pause_s = retry_pause_s(num_tries)
        if waited_s - logged_at >= LOG_EVERY_S:
            logged_at = waited_s
            log.info(
                "waiting_for_peer", expected=name, address=target, problem=problem,
                waited_s=round(waited_s, 1), next_try_in_s=pause_s, then_every_s=RETRY_SCHEDULE_S[-1],
            )  # fmt: skip
        num_tries += 1
        await asyncio.sleep(pause_s)
    if num_tries:
        log.info("peer_found", expected=name, address=target, waited_s=round(time.monotonic() - started_at, 1))


async def _problem(channel: grpc.aio.Channel, name: str) -> str | None:
    """Why `name` cannot be used yet; None when it can."""
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=TRY_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return errors.from_rpc_error(error).message
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return "it is there but not ready"


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
