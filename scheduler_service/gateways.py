"""The gateways that are connected, or may still come back: each is told what it can be served, and requests that none
claims any more are given up. What becomes of a request is the engine's.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from octavo import logs, loop_clock
from scheduler_service.gateway_session import GatewaySession
from scheduler_service.serving import ServingState
from scheduler_service.session_stream import SessionStream
from scheduler_service.tickets import Ticket

GRACE_S: Final = 10.0  # between the loss of a gateway's stream and the cancelling of its requests
TELL_S: Final = 0.5  # between two looks at what time alone changes

_log = logs.get(__name__)


class Gateways:
    """One session for each incarnation of a gateway."""

    def __init__(
        self,
        *,
        serving: Callable[[GatewaySession], ServingState],
        unclaimed: Callable[[Ticket], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._sessions: dict[int, GatewaySession] = {}  # by incarnation
        self._serving = serving
        self._unclaimed = unclaimed
        self._telling = tasks.create_task(self._keep_told(), name="keep-told")

    def __iter__(self) -> Iterator[GatewaySession]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def connect(self, gateway_id: str, incarnation: int, tokenizer_digest: bytes) -> GatewaySession:
        """A stream has come; the same incarnation keeps its requests."""
        session = self._sessions.get(incarnation)
        if session is None:
            session = self._sessions[incarnation] = GatewaySession(gateway_id, incarnation, tokenizer_digest)
        elif session.grace is None:
            self._begin_grace(session)  # for what it does not submit again: the cancel may have been lost
        _log.info("gateway_connected", gateway_id=gateway_id, num_requests=len(session.tickets))
        return session

    def disconnect(self, session: GatewaySession, stream: SessionStream) -> None:
        """A stream was lost; the gateway's requests end unless it is back in time."""
        if session.lost(stream):
            _log.info("gateway_lost", gateway_id=session.gateway_id, num_requests=len(session.tickets))
            self._begin_grace(session)

    def tell(self) -> None:
        """What can be served may have changed."""
        for session in self:
            if session.is_connected:
                session.serving(self._serving(session))

    def close(self) -> None:
        """End every stream when everything is written."""
        for session in self:
            session.close()

    def stop(self) -> None:
        """End every task and timer."""
        self._telling.cancel()
        for session in self:
            if session.grace is not None:
                session.grace.cancel()

    async def _keep_told(self) -> None:
        """Tell, for ever, what nothing but time brings about: somebody has been silent for too long."""
        while True:
            await asyncio.sleep(TELL_S)
            self.tell()

    def _begin_grace(self, session: GatewaySession) -> None:
        if session.grace is not None:
            session.grace.cancel()
        session.grace = loop_clock.call_later(GRACE_S, self._give_up, session)

    def _give_up(self, session: GatewaySession) -> None:
        """The grace time is over: what nobody has claimed is no longer wanted."""
        session.grace = None
        for ticket in session.unclaimed:
            self._unclaimed(ticket)
        if not session.is_connected:
            self._sessions.pop(session.incarnation, None)
