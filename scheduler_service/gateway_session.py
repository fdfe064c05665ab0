"""One gateway's requests and the stream on which it hears of them; events pile up while it is busy and go out as one.

A new stream hears only of requests that it has submitted again, because that says what it has of them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from octavo.errors import Failure
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service import session_wire
from scheduler_service.serving import ServingState
from scheduler_service.session_wire import Piled
from scheduler_service.tickets import Ending, Ticket

GRACE_S: Final = 10.0  # between the loss of a gateway's stream and the cancelling of its requests


class GatewaySession:
    """One incarnation of one gateway."""

    def __init__(self, gateway_id: str, incarnation: int, tokenizer_digest: bytes) -> None:
        self.gateway_id = gateway_id
        self.incarnation = incarnation
        self.tokenizer_digest = tokenizer_digest
        self.tickets: dict[int, Ticket] = {}  # by request number: open requests
        self.grace: asyncio.TimerHandle | None = None
        self._attached: set[int] = set()  # requests that the current stream has submitted
        self._piled = Piled()
        self._state: ServingState | None = None  # to be told
        self._changed = asyncio.Event()
        self._stream_num = 0  # of the current stream; 0 = never had one
        self.is_connected = False

    def request_id(self, request_num: int) -> str:
        """Unique over all gateways and their lives."""
        return f"{self.incarnation:016x}-{request_num}"

    def begin(self, state: ServingState) -> int:
        """A stream has come: it hears the state first. Returns its number; the stream before it ends."""
        self._stream_num += 1
        self._attached.clear()
        self.is_connected = True
        self._piled = Piled()
        self.serving(state)
        return self._stream_num

    def lost(self, stream_num: int) -> bool:
        """A stream ended; false if it was replaced before."""
        if stream_num != self._stream_num:
            return False
        self.is_connected = False
        self._attached.clear()
        return True

    @property
    def unclaimed(self) -> list[Ticket]:
        """Requests that the current stream, if there is one, has not submitted again."""
        return [ticket for num, ticket in self.tickets.items() if num not in self._attached]

    async def write_to(self, write: Callable[[pb.SessionResponse], Awaitable[None]], stream_num: int) -> None:
        """The only writer of a stream, until another one replaces it."""
        while True:
            await self._changed.wait()
            if stream_num != self._stream_num:
                return  # and leave the event set, for the stream that took over
            self._changed.clear()
            state, self._state = self._state, None  # both at once: after an await they may be another stream's
            piled, self._piled = self._piled, Piled()
            if state is not None:
                await write(pb.SessionResponse(state=session_wire.state(state)))
            if piled:
                await write(session_wire.events(piled))

    def serving(self, state: ServingState) -> None:
        self._state = state
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
