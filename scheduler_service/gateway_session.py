"""One gateway's requests and the stream on which it hears of them; events pile up while it is busy and go out as one.

A new stream hears only of requests that it has submitted again, because that says what it has of them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from octavo.errors import Failure
from octavo.loop_clock import Timer
from octavo.message_count import BEAT_S
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service import session_wire
from scheduler_service.serving import ServingState
from scheduler_service.session_stream import SessionStream
from scheduler_service.session_wire import Piled
from scheduler_service.tickets import Ending, Ticket


class GatewaySession:
    """One incarnation of one gateway."""

    def __init__(self, gateway_id: str, incarnation: int, tokenizer_digest: bytes) -> None:
        self.gateway_id = gateway_id
        self.incarnation = incarnation
        self.tokenizer_digest = tokenizer_digest
        self.tickets: dict[int, Ticket] = {}  # by request number: open requests
        self.grace: Timer | None = None
        self._attached: set[int] = set()  # requests that the current stream has submitted
        self._piled = Piled()
        self._state: ServingState | None = None  # to be told
        self._told: ServingState | None = None  # last, to the current stream
        self._changed = asyncio.Event()
        self._is_beat_due = False
        self._stream: SessionStream | None = None  # the current one
        self.is_connected = False
        self._is_closing = False

    def request_id(self, request_num: int) -> str:
        """Unique over all gateways and their lives."""
        return f"{self.incarnation:016x}-{request_num}"

    def begin(self, state: ServingState) -> SessionStream:
        """A stream has come: it hears the state first. The stream before it ends."""
        self._stream = stream = SessionStream()
        self._attached.clear()
        self.is_connected = True
        self._piled = Piled()
        self._told = None
        self.serving(state)
        return stream

    def is_current(self, stream: SessionStream) -> bool:
        """Whether no later stream has come: what an older one still brings is not to be heard."""
        return stream is self._stream

    def lost(self, stream: SessionStream) -> bool:
        """A stream ended; false if it was replaced before."""
        if not self.is_current(stream):
            return False
        self.is_connected = False
        self._attached.clear()
        return True

    @property
    def unclaimed(self) -> list[Ticket]:
        """Requests that the current stream, if there is one, has not submitted again."""
        return [ticket for num, ticket in self.tickets.items() if num not in self._attached]

    async def write_to(self, write: Callable[[pb.SessionResponse], Awaitable[None]], stream: SessionStream) -> None:
        """The only writer of a stream, until another one replaces it."""
        while True:
            await self._changed.wait()
            if not self.is_current(stream):
                return  # and leave the event set, for the stream that took over
            self._changed.clear()
            state, self._state = self._state, None  # both at once: after an await they may be another stream's
            piled, self._piled = self._piled, Piled()
            is_beat_due, self._is_beat_due = self._is_beat_due, False
            if state is not None:
                await write(pb.SessionResponse(state=session_wire.state(state), seq=stream.count.next_seq()))
            if piled:
                await write(session_wire.events(piled, seq=stream.count.next_seq()))
            if is_beat_due:
                beat = pb.Beat(last_received_seq=stream.count.num_received)
                await write(pb.SessionResponse(beat=beat, seq=stream.count.next_seq()))
            if self._is_closing:
                return

    def close(self) -> None:
        """End the stream when everything is written."""
        self._is_closing = True
        self._changed.set()

    async def beat(self) -> None:
        """Have a sign of life written every BEAT_S, for ever."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._is_beat_due = True
            self._changed.set()

    def serving(self, state: ServingState) -> None:
        """The state may have changed."""
        if state != self._told:
            self._state = self._told = state
            self._changed.set()

    def attach(self, ticket: Ticket) -> None:
        """The current stream submitted this request: it hears of it from now on."""
        self.tickets[ticket.request_num] = ticket
        self._attached.add(ticket.request_num)

    def attach_again(self, ticket: Ticket, num_received: int) -> None:
        """The gateway came back with `num_received` tokens of a live request: send it the others."""
        self.attach(ticket)
        missing = ticket.request.output_token_ids[num_received:]
        if missing:
            num_brought = len(ticket.submission.output_token_ids)  # by another scheduler, which kept their logprobs
            self.tokens(ticket, missing, ticket.logprobs[num_received - num_brought :])

    def admitted(self, ticket: Ticket) -> None:
        if ticket.request_num in self._attached:
            self._piled.admitted.append(session_wire.admitted(ticket))
            self._changed.set()

    def tokens(self, ticket: Ticket, token_ids: Sequence[int], logprobs: Sequence[bytes]) -> None:
        if ticket.request_num in self._attached:
            self._piled.tokens.setdefault(ticket.request_num, []).extend(token_ids)
            if logprobs:
                self._piled.logprobs.setdefault(ticket.request_num, []).extend(logprobs)
            self._changed.set()

    def finished(self, ticket: Ticket, ending: Ending) -> None:
        self.tickets.pop(ticket.request_num, None)
        if ticket.request_num in self._attached:
            self._attached.remove(ticket.request_num)
            self._piled.finished.append(session_wire.finished(ticket, ending, time.monotonic_ns()))
            self._changed.set()

    def rejected(self, request_num: int, failure: Failure) -> None:
        self.tickets.pop(request_num, None)
        self._attached.discard(request_num)
        if self.is_connected:
            self._piled.rejected.append(session_wire.rejected(request_num, failure))
            self._changed.set()
