"""Writes server-sent events to a client: starts late, so that early errors keep their status; never buffers.

Knows ASGI and nothing of what the events say. One watcher per stream notices a client that leaves or stops reading,
and breaks long silences with a comment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.openai import errors, exchange
from gateway.openai.edge import ClientGone
from gateway.openai.frames import DONE, KEEPALIVE, error_frame
from gateway.openai.generating import beside
from octavo import logs

_log = logs.get(__name__)

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
        self.writing_since_s: float | None = None

    async def write(self, frames: str, *, is_last: bool = False) -> None:
        """Send some whole frames; waits while the client does not read. Does nothing after the last ones."""
        async with self._lock:
            if self._is_ended:
                return
            self._is_ended = is_last
            self.writing_since_s = self._now()
            if not self.is_started:
                self.is_started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": frames.encode(), "more_body": not is_last})
            self.last_write_s = self._now()
            self.writing_since_s = None


# Writes all events of a stream, and returns the frames to end with.
Produce = Callable[[EventWriter], Awaitable[str]]


class EventStream(Response):
    """A response whose events `produce` writes. A failure before the first byte is raised, a later one is an event."""

    def __init__(
        self, produce: Produce, *, keepalive_s: float, stalled_client_s: float, headers: Mapping[str, str]
    ) -> None:
        self.background = None
        self._produce = produce
        self._keepalive_s = keepalive_s
        self._stalled_client_s = stalled_client_s
        self._own_headers = {**_HEADERS, **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(send, self._own_headers)
        watch = _watch(writer, receive, keepalive_s=self._keepalive_s, stalled_client_s=self._stalled_client_s)
        await beside(self._write_all(writer, scope), watch)

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


async def _watch(writer: EventWriter, receive: Receive, *, keepalive_s: float, stalled_client_s: float) -> None:
    """Raises ClientGone when the client has left, or has not read for `stalled_client_s`. 0 switches either off."""
    now = asyncio.get_running_loop().time
    while True:
        try:
            async with asyncio.timeout(
                _next_look_s(writer, now(), keepalive_s=keepalive_s, stalled_client_s=stalled_client_s)
            ):
                message = await receive()
        except TimeoutError:
            since = writer.writing_since_s
            if since is not None and 0 < stalled_client_s <= now() - since:
                _log.warning("client_stalled", waited_s=round(now() - since, 3))
                raise ClientGone from None
            if since is None and 0 < keepalive_s <= now() - writer.last_write_s:
                await writer.write(KEEPALIVE)
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone


def _next_look_s(writer: EventWriter, now_s: float, *, keepalive_s: float, stalled_client_s: float) -> float | None:
    """Seconds until there may be something to do; None = never."""
    if writer.writing_since_s is not None and stalled_client_s > 0:
        return max(0.0, writer.writing_since_s + stalled_client_s - now_s)
    if writer.writing_since_s is None and keepalive_s > 0:
        return max(0.0, writer.last_write_s + keepalive_s - now_s)
    return max(keepalive_s, stalled_client_s) or None
