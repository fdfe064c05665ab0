"""What happens around every RPC: exceptions become rich errors, calls become spans, calls in flight are counted.

Knows grpc.aio handlers and the status table; nothing of what a handler does. Long internal streams get the error
mapping only, health and reflection nothing.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.trace import Status, StatusCode

from octavo import errors, logs, telemetry

Context = Any  # grpc.aio.ServicerContext; its published types lack half of what it does
Handler = Any  # grpc.RpcMethodHandler
Respond = Callable[[Any, Context], Awaitable[Any]]

MAX_MESSAGE_CHARS = 2000  # an error travels in headers, of which HTTP/2 peers accept about 8 KiB

# gRPC rounds a deadline up by as much as 1 % on the wire, so the server's copy may run out a little later.
_DEADLINE_SLACK, _DEADLINE_SLACK_S = 0.01, 0.02

_SERVER_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
_log = logs.get(__name__)


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps each handler once, at its first call."""

    def __init__(
        self,
        statuses: errors.StatusTable,
        broken: "asyncio.Future[AssertionError]",
        *,
        slow_request_s: float | None = None,
    ) -> None:
        """`slow_request_s`: how long a client may take to send the one message of a call; None = for ever."""
        self._statuses = statuses
        self._slow_request_s = slow_request_s
        self._broken = broken  # done when a handler broke an invariant, so that the process can end
        self._handlers: dict[str, Handler] = {}
        self._num_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_calls(self) -> int:
        """Per-request calls in flight; long streams are not counted."""
        return self._num_calls

    async def idle(self) -> None:
        """Return when no per-request call is in flight."""
        await self._idle.wait()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        if method not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None or method.startswith(("/grpc.health.", "/grpc.reflection.")):
                return handler
            self._handlers[method] = self._wrapped(method, handler)
        return self._handlers[method]

    def _wrapped(self, method: str, handler: Any) -> Handler:
        kinds = {
            (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
            (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
            (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
            (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        }
        behavior, make_handler = kinds[handler.request_streaming, handler.response_streaming]
        respond = _as_coroutine(behavior)
        is_long = handler.request_streaming or method.endswith("/Watch")
        run = self._run_long if is_long else self._run

        async def wrapped(request: Any, context: Context) -> Any:
            return await run(method, context, respond(request, context))

        async def wrapped_when_received(_: Any, context: Context) -> Any:
            """gRPC itself waits for a message without limit, but not if the handler reads it."""
            request = await self._run_long(method, context, _received(context, self._slow_request_s))
            return await wrapped(request, context)

        if self._slow_request_s is not None and not handler.request_streaming:
            _, make_streaming = kinds[True, handler.response_streaming]
            return make_streaming(wrapped_when_received, handler.request_deserializer, handler.response_serializer)
        return make_handler(wrapped, handler.request_deserializer, handler.response_serializer)

    async def _run(self, method: str, context: Context, response: Awaitable[Any]) -> Any:
        """One per-request call, counted and inside a SERVER span that ends with the status the client gets."""
        self._num_calls += 1
        self._idle.clear()
        budget_s = context.time_remaining()
        span = _start_span(method, context)
        code, event = "OK", ""
        try:
            with telemetry.use(span):
                result = await self._run_long(method, context, response)
            code = _code_of(context)
            return result
        except asyncio.CancelledError:
            code, event = _why_cancelled(context, budget_s)
            raise
        except grpc.aio.AbortError:
            code = _code_of(context)
            raise
        except grpc.aio.BaseError:  # a write failed, because the client is gone
            code, event = _why_cancelled(context, budget_s)
            raise
        finally:
            _end_span(span, code, event)
            self._num_calls -= 1
            if self._num_calls == 0:
                self._idle.set()

    async def _run_long(self, method: str, context: Context, response: Awaitable[Any]) -> Any:
        """Await the handler; end the call with the rich error that its exception stands for."""
        try:
            return await response
        except grpc.aio.BaseError:  # aborted by the handler, or the client is gone: gRPC knows what to say
            raise
        except Exception as exc:  # noqa: BLE001 - the one place where every error of a handler must end
            if isinstance(exc, AssertionError) and not self._broken.done():
                self._broken.set_result(exc)
            failure = errors.from_exception(exc, self._statuses) or _bug(method, context)
            await _abort(method, context, failure)


def _as_coroutine(behavior: Any) -> Respond:
    """An async generator handler in the other style, `await context.write`; coroutine handlers as they are.

    Awaited in the call's own task, a cancellation reaches the generator at once and its `finally` runs there.
    """
    if asyncio.iscoroutinefunction(behavior):
        return behavior  # type: ignore[no-any-return]

    async def write_all(request: Any, context: Context) -> None:
        messages: AsyncIterator[Any] = behavior(request, context)
        async with aclosing(messages) as generator:  # type: ignore[type-var]
            async for message in generator:
                await context.write(message)

    return write_all


async def _received(context: Context, limit_s: float | None) -> Any:
    """The one message of a call."""
    try:
        async with asyncio.timeout(limit_s):
            message = await context.read()
    except DecodeError:
        message = grpc.aio.EOF  # type: ignore[attr-defined]
    except TimeoutError:
        problem = f"the request did not arrive within {limit_s:g} s"
        raise errors.Failed(
            errors.Failure(code=grpc.StatusCode.CANCELLED, reason="CLIENT_STALLED", message=problem)
        ) from None
    if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # its stubs lack it
        problem = "the call has no message that could be read as its request"
        raise errors.Failed(
            errors.Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_PARAMETER", message=problem)
        )
    return message


async def _abort(method: str, context: Context, failure: errors.Failure) -> NoReturn:
    service = method.rpartition("/")[0].lstrip("/")
    trailers = errors.to_trailers(failure, domain=service)
    await context.abort(failure.code, failure.message[:MAX_MESSAGE_CHARS], (*context.trailing_metadata(), *trailers))
    raise AssertionError("abort returned")


def _bug(method: str, context: Context) -> errors.Failure:
    """INTERNAL with an id that finds the logged traceback; the client learns nothing else."""
    request_id = text_metadata(context).get("x-request-id") or uuid.uuid4().hex
    _log.exception("rpc_crashed", method=method, request_id=request_id)
    return errors.internal(request_id)


def _start_span(method: str, context: Context) -> telemetry.Span:
    metadata = text_metadata(context)
    parent = telemetry.context_from_traceparent(metadata.get("traceparent"), metadata.get("tracestate"))
    name = method.lstrip("/")
    return telemetry.start_span(
        name, parent=parent, kind="server", attributes={"rpc.system.name": "grpc", "rpc.method": name}
    )


def _end_span(span: telemetry.Span, code: str, event: str) -> None:
    if span.is_recording():
        span.set_attribute("rpc.status_code", code)
        if event:
            span.add_event(event)
        if code in _SERVER_ERRORS:
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR, code))
    span.end()


def _why_cancelled(context: Context, budget_s: float | None) -> tuple[str, str]:
    """(status, event): gRPC cancels a handler both when the client does and when its deadline passes."""
    left_s = context.time_remaining()
    if budget_s is not None and left_s is not None and left_s <= budget_s * _DEADLINE_SLACK + _DEADLINE_SLACK_S:
        return "DEADLINE_EXCEEDED", "deadline_exceeded"
    return "CANCELLED", "client_cancelled"


def _code_of(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


def text_metadata(context: Context) -> dict[str, str]:
    """What a call brought besides its message, without the entries that are bytes."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
