"""Clients of one server: sends each request the way it asks for, and again when a client should ask again."""

import asyncio
import time
from types import TracebackType
from typing import Self

from tests.chaos.attempt import RETRIED, Outcome
from tests.chaos.grpc_client import GrpcClient
from tests.chaos.http_client import HttpClient
from tests.chaos.requests import Request
from tests.chaos.transcript import Transcript

RETRY_PAUSE_S = 0.5  # when the server says nothing about it
GIVE_UP_S = 120.0  # since the first try


class Clients:
    """One of each API; a context manager."""

    def __init__(self, http_url: str, grpc_addr: str) -> None:
        self._http = HttpClient(http_url)
        self._grpc = GrpcClient(grpc_addr)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._http.close()
        await self._grpc.close()

    async def ask(self, outcome: Outcome) -> None:
        """Try until it has ended or its client gives up; every try is in the outcome as soon as it is over."""
        begun_s = time.monotonic()
        while True:
            left_s = _left_s(outcome.request, begun_s)
            outcome.current = Transcript(outcome.request.n)
            used = self._grpc if outcome.request.way.is_grpc else self._http
            attempt = await used.attempt(outcome.request, outcome.current, deadline_s=left_s)
            outcome.attempts.append(attempt)
            pause_s = RETRY_PAUSE_S if attempt.retry_after_s is None else attempt.retry_after_s
            gives_up_s = min(GIVE_UP_S, outcome.request.deadline_s or GIVE_UP_S)
            if attempt.ending not in RETRIED or time.monotonic() + pause_s - begun_s >= gives_up_s:
                return
            await asyncio.sleep(pause_s)


def _left_s(request: Request, begun_s: float) -> float | None:
    return None if request.deadline_s is None else request.deadline_s - (time.monotonic() - begun_s)
