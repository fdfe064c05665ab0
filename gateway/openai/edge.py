"""The outermost layer of the HTTP surface: tidy paths, request ids, server spans, and an answer for every exception.

Plain ASGI, because it sees every message of every stream: what it adds to one is a comparison.
"""

import re

from opentelemetry.trace import Status, StatusCode
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.openai import errors, exchange
from gateway.openai.exchange import Exchange
from octavo import telemetry

_SLASHES = re.compile("/{2,}")


class ClientGone(Exception):
    """The client closed its connection, or stopped reading, before it had its answer."""


class Edge:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = tidy(scope["path"])
        here = exchange.begin(scope)
        sender = _Sender(here.request_id, send)
        with telemetry.use(here.span):
            try:
                await self._answer(scope, receive, sender)
            finally:
                _end_span(here, scope, status=sender.status)

    async def _answer(self, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        here = exchange.current(scope)
        try:
            await self._app(scope, receive, sender)
        except ClientGone:
            here.is_client_gone = True
            if sender.status is None:  # for the access log: nobody reads it
                await Response(status_code=errors.CLIENT_CLOSED_REQUEST)(scope, receive, sender)
        except Exception as exc:  # the boundary: whatever it is, the client gets an answer in OpenAI's form
            if sender.status is not None:
                raise
            await errors.problem(exc, here.request_id).response()(scope, receive, sender)


class _Sender:
    """Adds the request id to the response's headers and remembers its status."""

    def __init__(self, request_id: str, send: Send) -> None:
        self._header = (b"x-request-id", request_id.encode("ascii"))
        self._send = send
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), self._header]
        await self._send(message)


def tidy(path: str) -> str:
    """//v1/models/ is /v1/models: base URLs end in a slash as often as not."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def _end_span(here: Exchange, scope: Scope, *, status: int | None) -> None:
    span = here.span
    if span.is_recording():
        route = getattr(scope.get("route"), "path", None)
        if route is not None:
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        else:
            span.update_name(scope["method"])
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        if here.is_client_gone:
            span.add_event("client_cancelled")
        error = here.error or (str(status) if status is not None and status >= 400 else None)
        if error is not None:
            span.set_attribute("error.type", error)
        if here.error is not None or (status is not None and status >= 500):
            span.set_status(Status(StatusCode.ERROR))
    span.end()
