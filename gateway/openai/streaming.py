"""Writes server-sent events to a client: starts late, so that early errors keep their status; never buffers.

Knows ASGI and nothing of what the events say. One watcher per stream notices a client that leaves, and breaks long
silences with a comment. A client that stops reading is given up by its connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.openai import errors, exchange
from gateway.openai.edge import ClientGone
from gateway.openai.frames import DONE, KEEPALIVE, error_frame
from gateway.openai.generating import beside

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events otherwise
}


class EventWriter:
    """The sending half of one stream. The response starts with the first write."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._lock = asyncio.Lock()  # several prompts, and the watcher, write to one stream
        self._now = asyncio.get_running_loop().time
        self._is_ended = False
        self.is_started = False
        self.last_write_s = self._now()
        self.is_writing = False

    async def write(self, frames: str, *, is_last: bool = False) -> None:
        """Send some whole frames; waits while the client does not read. Does nothing after the last ones."""
        async with self._lock:
            if self._is_ended:
                return
            self._is_ended = is_last
            self.is_writing = True
            if not self.is_started:
                self.is_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": frames.encode(), "more_body": not is_last})
            self.last_write_s = self._now()
            self.is_writing = False


# Writes all events of a stream, and returns the frames to end with.
Produce = Callable[[EventWriter], Awaitable[str]]


class EventStream(Response):
    """A response whose events `produce` writes. A failure before the first byte is raised, a later one is an event."""

    def __init__(self, produce: Produce, *, keepalive_s: float, headers: Mapping[str, str]) -> None:
        self.background = None
        self._produce = produce
        self._keepalive_s = keepalive_s
        self._own_headers = {**_HEADERS, **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(send, self._own_headers)
        await beside(self._write_all(writer, scope), _watch(writer, receive, keepalive_s=self._keepalive_s))

    async def _write_all(self, writer: EventWriter, scope: Scope) -> None:
        try:
            last = await self._produce(writer)
        except Exception as exc:  # the boundary of a stream: whatever it is, the client is told
            if not writer.is_started:
                raise
            here = exchange.current(scope)
            problem = errors.problem(exc, here.request_id)
            here.error = problem.code or problem.type
            last = error_frame(problem.body)
        await writer.write(last + DONE, is_last=True)


async def _watch(writer: EventWriter, receive: Receive, *, keepalive_s: float) -> None:
    """Break long silences; raises ClientGone when the client has left, or was given up because it does not read."""
    now = asyncio.get_running_loop().time
    while True:
        quiet_s = 0.0 if writer.is_writing else now() - writer.last_write_s
        try:
            async with asyncio.timeout(max(0.0, keepalive_s - quiet_s) if keepalive_s else None):
                message = await receive()
        except TimeoutError:
            if not writer.is_writing and now() - writer.last_write_s >= keepalive_s:
                await writer.write(KEEPALIVE)
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone
