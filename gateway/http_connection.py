"""One HTTP connection, and what it may cost while its client is slow, silent or hostile.

uvicorn's connection, with the bounds that uvicorn leaves out: the time and the bytes of a request's head, the time of
its body, the time without a request, the time without reading, requests sent ahead of their answers. Whoever waits for
its client the longest gives way when there are too many. Knows nothing of what is asked.

    opened ──▶ IDLE ──first byte──▶ HEAD ──last header──▶ BODY ──last byte──▶ WORK ──answered──▶ IDLE
                                                            └──answered already──▶ REST ──last byte──┘
"""

import asyncio
import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http_connections import ConnectionLimits, Connections, Cut

MAX_HEAD_BYTES = 65_536  # of names and values, and of anything else that is neither body nor a whole header
HEADER_COST = 32  # bytes that count for each header besides its own, as HTTP/2 counts them
MAX_PIPELINED = 16  # requests sent ahead of the answer to the one before
LATE_S = 1.0  # a time limit noticed later than this says that this process did not run, not that the client was slow


class Phase(Enum):
    """Who waits for whom."""

    IDLE = "idle"  # for a request
    HEAD = "head"  # for the rest of its head
    BODY = "body"  # for the rest of its body
    REST = "rest"  # for the rest of a body whose answer is sent
    WORK = "work"  # the client waits for us
    GONE = "gone"  # refused; what still comes is not looked at


class HttpConnection(HttpToolsProtocol):
    """Created by uvicorn for every connection it accepts.

    First what asyncio and uvicorn call, then what the parser calls, then the limits.
    """

    def __init__(self, *, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._limits: ConnectionLimits = connections.limits
        self.phase = Phase.IDLE
        self.num_body_bytes = 0  # of requests that are not answered yet
        self._running: RequestResponseCycle | None = None
        self._reading = Phase.IDLE  # how far the parser is in the newest request: IDLE, HEAD or BODY
        self._num_head_bytes = 0
        self._num_unparsed_bytes = 0  # fed since the parser last had something to tell
        self._phase_since_s = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # any byte that the client does not take stops the writer
        self._enter(Phase.IDLE)
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._connections.closed(self)
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn tells the newest request only
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.GONE:
            return
        self._num_unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as the HTTP/1.1 that it also is
        except httptools.HttpParserError as unreadable:
            self._refuse_unreadable(unreadable)
            return
        if self._num_unparsed_bytes > MAX_HEAD_BYTES:
            self.cut(Cut.LARGE_HEAD)
        else:
            self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = Phase.HEAD
        self._num_head_bytes = self._num_unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + HEADER_COST)  # trailers too
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(Cut.PIPELINED)
        self._reading = Phase.BODY
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_unparsed_bytes = 0
        super().on_body(body)
        if not self.cycle.response_complete:
            self.num_body_bytes += len(body)
            self._connections.received(len(body))

    def on_message_complete(self) -> None:
        self._reading = Phase.IDLE
        self._num_unparsed_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the time between requests is ours to limit
        self._look()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def close_if_idle(self, idle_s: float) -> None:
        """Close if no request has come for that long; nobody is told why."""
        if self.phase is Phase.IDLE and self.loop.time() - self._phase_since_s >= idle_s:
            self.transport.close()

    def cut(self, reason: Cut) -> None:
        """Close, and say why if the client is waiting for an answer."""
        if self.phase is Phase.GONE:
            self.transport.abort()
            return
        self._connections.count(reason)
        answer = _answer(reason) if self._owes_answer(reason) else b""
        self._enter(Phase.GONE)
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        if answer and reason is not Cut.TOO_MANY:
            self.transport.write_eof()  # and wait a little: closing now would take the answer back
        else:
            self.transport.close()

    def _owes_answer(self, reason: Cut) -> bool:
        """Nothing else is being answered, and the client has asked something, or had no chance to."""
        if self.phase is Phase.BODY:
            return self._running is not None and not self._running.response_started
        is_answered = self._running is None or self._running.response_complete
        is_between = self.phase is Phase.REST or (self.phase is Phase.IDLE and self._running is not None)
        match reason:
            case Cut.IDLE | Cut.STALLED:
                return False
            case Cut.TOO_MANY | Cut.BODIES:
                return is_answered and not is_between
            case _:
                return is_answered

    def _look(self) -> None:
        """Enter the phase that the request and its answer are in."""
        if self.phase is Phase.GONE or self.transport.is_closing():
            return
        is_answered = not self.pipeline and (self._running is None or self._running.response_complete)
        phase = self._reading if is_answered else Phase.WORK
        if self._reading is Phase.BODY and not self.pipeline:
            phase = Phase.REST if is_answered else Phase.BODY
        if phase is not self.phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._phase_since_s = self.loop.time()
        if phase not in (Phase.BODY, Phase.WORK):
            self._connections.let_go(self.num_body_bytes)
            self.num_body_bytes = 0
        self._connections.moved(self, waits_for_client=phase is not Phase.WORK)
        if self._deadline is not None:
            self._deadline.cancel()
        allowed_s = self._allowed_s()
        self._deadline = None if allowed_s is None else self._call_at(self._phase_since_s + allowed_s, self._over)

    def _allowed_s(self) -> float | None:
        """Seconds that this phase may take so far; a body earns more with every byte."""
        match self.phase:
            case Phase.IDLE:
                return self._limits.idle_s
            case Phase.HEAD:
                return self._limits.slow_request_s
            case Phase.BODY:
                return self._limits.slow_request_s + self.num_body_bytes / self._limits.min_bytes_per_s
            case Phase.REST | Phase.GONE:
                return self._limits.linger_s
            case Phase.WORK:
                return None

    def _over(self, due_s: float) -> None:
        """The phase's time is over, unless it has earned more or this process was not there to see it used."""
        now_s, allowed_s = self.loop.time(), self._allowed_s()
        assert allowed_s is not None, f"a time limit in phase {self.phase}"
        if now_s - due_s > LATE_S:
            self._phase_since_s = now_s - allowed_s + LATE_S
        end_s = self._phase_since_s + allowed_s
        if end_s > now_s:
            self._deadline = self._call_at(end_s, self._over)
        elif self.phase is Phase.GONE:
            self.transport.abort()
        else:
            self.cut({Phase.HEAD: Cut.SLOW_HEAD, Phase.BODY: Cut.SLOW_BODY}.get(self.phase, Cut.IDLE))

    def _watch_writes(self, num_unsent_bytes: int) -> None:
        """Give the client up once it has taken nothing for the whole time; also after the last byte was written."""
        if self._limits.stalled_s == 0:
            return

        def look(due_s: float) -> None:
            left = self.transport.get_write_buffer_size()
            if left < num_unsent_bytes or self.loop.time() - due_s > LATE_S:
                self._watch_writes(left)
                return
            self._connections.count(Cut.STALLED)
            self.transport.abort()

        self._stalled = self._call_at(self.loop.time() + self._limits.stalled_s, look)

    def _call_at(self, due_s: float, look: Callable[[float], None]) -> asyncio.TimerHandle:
        return self.loop.call_at(due_s, look, due_s)

    def _count_head(self, num_bytes: int) -> None:
        self._num_unparsed_bytes = 0
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise Refused(Cut.LARGE_HEAD)

    def _refuse_unreadable(self, unreadable: Exception) -> None:
        """Not HTTP, or one of our own refusals, which the parser wraps."""
        cause = unreadable.__context__
        self.cut(cause.reason if isinstance(cause, Refused) else Cut.NOT_HTTP)

    def _stop_timers(self) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()


class Refused(Exception):
    """Raised through the parser, which then stops."""

    def __init__(self, reason: Cut) -> None:
        super().__init__(reason.value)
        self.reason = reason


def _answer(reason: Cut) -> bytes:
    """A whole response in OpenAI's form."""
    error = {"message": reason.message, "type": reason.error_type, "param": None, "code": reason.value}
    body = json.dumps({"error": error}).encode()
    head = f"HTTP/1.1 {reason.status_line}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    retry = "retry-after: 1\r\n" if reason.is_passing else ""
    return f"{head}{retry}connection: close\r\n\r\n".encode() + body
