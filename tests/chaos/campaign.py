"""Faults one after another on a stack under load; after each, everything that clients saw meanwhile is judged."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import invariants, reference
from tests.chaos.clients import Clients
from tests.chaos.faults import Fault, Kind, Targets
from tests.chaos.grpc_client import PATIENCE_S
from tests.chaos.http_client import WHOLE_SILENCE_S
from tests.chaos.injector import inject
from tests.chaos.load import Load
from tests.chaos.requests import request_set
from tests.chaos.stack import Stack
from tests.chaos.transcript import Transcript
from tests.chaos.verdict import Window, judge

READY_LIMIT_S = 60.0  # after a fault is over
PASS_LIMIT_S = 20.0 + max(WHOLE_SILENCE_S, PATIENCE_S)  # for the requests that were open then; their clients first
APART_S = 2.0  # between the two faults of a pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one fault, or two close to each other, did."""

    faults: Sequence[Fault]
    is_ready: bool  # everything, within READY_LIMIT_S after the end
    ready_after_s: float  # from the end until then
    worst_pause_s: float  # of a stream that ran meanwhile
    num_streams: int  # that did
    num_outcomes: int  # that were judged
    complaints: Sequence[str]


class Campaign:
    """Keeps the account of what has been judged."""

    def __init__(self, stack: Stack, load: Load, answers: Mapping[str, Transcript]) -> None:
        self.stack = stack
        self.num_judged = 0
        self._load = load
        self._answers = answers
        self._windows: list[Window] = []  # in which clients may lose their connections

    async def provoke(self, faults: Sequence[Fault]) -> Round:
        """Do it all, wait until everything that was open has ended, and judge."""
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(faults):
                tasks.create_task(self._later(fault, APART_S * number))
        ended_s = time.monotonic()
        complaints = await self._not_ready()
        ready_s = time.monotonic()
        if harm := [fault.kind for fault in faults if fault.breaks_clients]:
            is_graceful = all(kind is Kind.TERM for kind in harm)
            self._windows.append(Window(begun_s=begun_s, ended_s=ready_s, is_graceful=is_graceful))
        complaints += await self._load.pass_by(PASS_LIMIT_S)
        num_judged = self.num_judged
        complaints += [*self._judged(), *self._crashes()]
        pauses = self._load.pauses(begun_s, ready_s)
        return Round(
            faults=faults,
            is_ready=ready_s - ended_s < READY_LIMIT_S,
            ready_after_s=ready_s - ended_s,
            worst_pause_s=pauses[0].length_s if pauses else 0.0,
            num_streams=len(pauses),
            num_outcomes=self.num_judged - num_judged,
            complaints=complaints,
        )

    async def quiet(self) -> list[str]:
        """Let all requests end, see that nothing is left of them anywhere, and start again."""
        complaints = await self._load.settle(PASS_LIMIT_S)
        complaints += [*self._judged(), *self._crashes()]
        complaints += await invariants.broken_after_quiet(self.stack)
        self._load.start()
        return complaints

    async def _later(self, fault: Fault, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await inject(self.stack, fault)

    async def _not_ready(self) -> list[str]:
        try:
            await self.stack.ready(READY_LIMIT_S)
        except TimeoutError as problem:
            return [str(problem)]
        return []

    def _judged(self) -> list[str]:
        """Complaints about all outcomes since the last time."""
        new = self._load.outcomes[self.num_judged :]
        self.num_judged += len(new)
        return [
            complaint
            for outcome in new
            for complaint in judge(outcome, self._answers[outcome.request.name], broken=self._windows)
        ]

    def _crashes(self) -> list[str]:
        return [crash for process in self.stack.processes.values() for crash in process.take_crashes()]


@asynccontextmanager
async def started(
    folder: Path, *, seed: int, num_streams: int, num_requests: int, num_workers: int = 2
) -> AsyncIterator[Campaign]:
    """A stack that has answered every request once, undisturbed, and is under load now."""
    requests = request_set(seed, num_requests)
    async with Stack(folder, num_workers=num_workers) as stack:
        async with Clients(stack.http_url, stack.grpc_addr) as clients:
            answers = await reference.undisturbed(clients, requests)
        async with Load(stack.http_url, stack.grpc_addr, requests, num_streams=num_streams, seed=seed) as load:
            load.start()
            yield Campaign(stack, load, answers)


def targets(num_workers: int) -> Targets:
    """All that can be harmed on a stack with so many workers."""
    workers = [f"worker-{number}" for number in range(num_workers)]
    streams = ["gateway-scheduler", *(f"{worker}-scheduler" for worker in workers), "scheduler-kvcache"]
    return Targets(
        processes=["gateway", "scheduler", "kvcache", "redis", *workers],
        links=["client-gateway-http", "client-gateway-grpc", *streams, "kvcache-redis"],
        message_links=streams,
    )
