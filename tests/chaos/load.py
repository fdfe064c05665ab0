"""Many clients that ask for ever, and a record of everything they saw.

async with Load(stack.http_url, stack.grpc_addr, requests, num_streams=32, seed=7) as load:
    load.start()
    ...                      # faults
    await load.settle(60)    # no new requests; those that run end
for outcome in load.outcomes:
    complaints += judge(outcome, answers[outcome.request.name], broken=windows)
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.chaos.attempt import Outcome
from tests.chaos.clients import Clients
from tests.chaos.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """How long one stream that had begun gave nothing new."""

    request: str
    begun_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.begun_s


class Load:
    """`num_streams` clients; each draws its requests from `requests` by `seed`. Outcomes are there once they end."""

    def __init__(
        self, http_url: str, grpc_addr: str, requests: Sequence[Request], *, num_streams: int, seed: int
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._clients = Clients(http_url, grpc_addr)
        self._requests = requests
        self._randoms = [random.Random(f"{seed}/{stream}") for stream in range(num_streams)]
        self._open: dict[int, Outcome] = {}
        self._streams: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self._clients.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        await self._clients.__aexit__(kind, error, tb)

    @property
    def num_open(self) -> int:
        """Requests whose clients wait for something."""
        return len(self._open)

    def has_gone_on(self, since_s: float) -> bool:
        """Whether all streams that are open have brought something since then."""
        streams = [outcome for outcome in self._open.values() if outcome.request.way.is_stream]
        return all(
            outcome.current is not None and any(arrival_s > since_s for arrival_s in outcome.current.arrivals_s[-1:])
            for outcome in streams
        )

    def start(self) -> None:
        """Let all clients ask, again after `settle`."""
        assert not self._streams, "the load runs already"
        self._is_ending = False
        self._streams = [asyncio.create_task(self._run(stream)) for stream in range(len(self._randoms))]

    async def settle(self, timeout_s: float) -> list[str]:
        """No new requests; return when all have ended. What has not after `timeout_s` is named and cancelled."""
        self._is_ending = True
        streams, self._streams = self._streams, []
        if not streams:
            return []
        done, late = await asyncio.wait(streams, timeout=timeout_s)
        stuck = [f"{outcome.request.name} has not ended after {timeout_s:g} s" for outcome in self._open.values()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()  # a bug of the load itself
        return stuck

    async def pass_by(self, timeout_s: float) -> list[str]:
        """Return when all that is open now has ended, others go on; what has not after `timeout_s` is named."""
        awaited = list(self._open.values())
        deadline_s = time.monotonic() + timeout_s
        while awaited and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
            for task in self._streams:
                if task.done():
                    task.result()  # a bug of the load itself
            awaited = [outcome for outcome in awaited if self._open.get(outcome.stream) is outcome]
        return [f"{outcome.request.name} has not ended after {timeout_s:g} s" for outcome in awaited]

    def pauses(self, from_s: float, until_s: float) -> list[Pause]:
        """Of every stream that has ended and ran at some time between, its longest pause that touches that time."""
        ended_later = itertools.takewhile(lambda outcome: outcome.ended_s > from_s, reversed(self.outcomes))
        longest = (
            max(touching, key=lambda pause: pause.length_s)
            for outcome in ended_later
            if (touching := [pause for pause in pauses(outcome) if pause.begun_s < until_s and pause.ended_s > from_s])
        )
        return sorted(longest, key=lambda pause: pause.length_s, reverse=True)

    async def _run(self, stream: int) -> None:
        while not self._is_ending:
            outcome = Outcome(request=self._randoms[stream].choice(self._requests), stream=stream)
            self._open[stream] = outcome
            await self._clients.ask(outcome)
            del self._open[stream]
            self.outcomes.append(outcome)


def pauses(outcome: Outcome) -> Iterator[Pause]:
    """Times between a streamed answer's events, from its first one on. A try that broke goes on with the next one."""
    if not outcome.request.way.is_stream:
        return
    arrivals_s = [arrival_s for attempt in outcome.attempts for arrival_s in attempt.transcript.arrivals_s]
    for begun_s, ended_s in itertools.pairwise(arrivals_s):
        yield Pause(request=outcome.request.name, begun_s=begun_s, ended_s=ended_s)
