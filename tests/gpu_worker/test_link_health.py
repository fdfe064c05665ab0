"""What the worker does about a scheduler that is silent, and what it says of itself when a step does not end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpu_worker import scheduler_link
from gpu_worker.core.step import Step, StepResult
from gpu_worker.executor import StepExecutor
from gpu_worker.scheduler_link import SchedulerLink
from gpu_worker.startup import Ready
from octavo.health import Readiness
from tests.fakes import scheduler_link_server
from tests.fakes.scheduler_link_server import SchedulerLinkServer
from tests.gpu_worker import tiny_models
from tests.gpu_worker.test_scheduler_link import attached, first_step, next_step, result_of


class HeldExecutor(StepExecutor):
    """Answers no step while `gate` is cleared."""

    gate: threading.Event

    def execute(self, step: Step, received_ns: int, *, launched: Callable[[], None] = print) -> StepResult:
        self.gate.wait(10)
        return super().execute(step, received_ns, launched=launched)


class Worker:
    """A link, what it says of itself, and the gate of its steps."""

    def __init__(self, ready: Ready, address: str) -> None:
        executor = HeldExecutor(ready.runner)
        self.gate = executor.gate = threading.Event()
        self.gate.set()
        self.readiness = Readiness()
        self.link = SchedulerLink(
            ready.identity, executor, scheduler_addr=address, readiness=self.readiness, report=lambda _: None
        )


@pytest.fixture
async def fake() -> AsyncIterator[SchedulerLinkServer]:
    async with scheduler_link_server.listening() as server:
        yield server


@pytest.fixture
async def worker(fake: SchedulerLinkServer, gqa_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", 0.05)
    made = Worker(tiny_models.ready(tiny_models.files_of(gqa_folder)), fake.address)
    running = asyncio.ensure_future(made.link.run())
    yield made
    made.gate.set()
    made.link.leave()
    await asyncio.wait_for(running, 10)


async def test_a_scheduler_that_is_silent_is_dialled_again(
    fake: SchedulerLinkServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_link, "SILENCE_S", 0.8)
    first = await attached(fake)
    first.fall_silent()
    monkeypatch.setattr(scheduler_link, "SILENCE_S", 5)
    second = await attached(fake)
    assert (second.hello.incarnation, second.hello.session) == (first.hello.incarnation, first.hello.session + 1)


async def test_signs_of_life_keep_a_stream_on_which_nothing_else_comes(
    fake: SchedulerLinkServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_link, "SILENCE_S", 0.8)
    await attached(fake)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fake.streams.get(), 1.5)


async def test_a_step_that_does_not_end_makes_the_worker_not_ready_until_it_does(
    fake: SchedulerLinkServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_link, "STEP_BOUND_S", 0.3)
    stream = await attached(fake)
    await asyncio.wait_for(worker.readiness.ready(), 5)
    worker.gate.clear()
    stream.send(step=first_step())
    stream.send(step=next_step(2))
    await asyncio.wait_for(worker.readiness.changed(), 5)
    assert (worker.readiness.is_ready, worker.readiness.reason) == (False, "step 1 has not ended within 0.3 s")
    worker.gate.set()
    await result_of(stream)
    await asyncio.wait_for(worker.readiness.ready(), 5)


async def test_a_worker_that_computes_one_step_after_the_other_is_ready(
    fake: SchedulerLinkServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is of each step, not of the time since it was idle last."""
    monkeypatch.setattr(scheduler_link, "STEP_BOUND_S", 0.3)
    stream = await attached(fake)
    await asyncio.wait_for(worker.readiness.ready(), 5)
    changed = asyncio.ensure_future(worker.readiness.changed())
    stream.send(step=first_step())
    for seq in range(2, 200):
        stream.send(step=next_step(seq))
        await asyncio.sleep(0.004)
        await result_of(stream)
    assert not changed.done()
    changed.cancel()
