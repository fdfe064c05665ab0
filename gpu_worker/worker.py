"""One worker's life: find the model, load it, attach to the scheduler, work until told to stop."""

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_worker import step_report
from gpu_worker.config import WorkerConfig
from gpu_worker.executor import StepExecutor
from gpu_worker.scheduler_link import SchedulerLink
from gpu_worker.servicer import Description, WorkerServicer
from gpu_worker.startup_phases import Phases
from octavo import logs, model_files
from octavo.health import Readiness

if TYPE_CHECKING:
    from gpu_worker import startup

# How long an idle thread of the model spins before it sleeps, some 20 us. The default of 300,000 rounds makes a step
# twenty times slower beside a busy process, because it spins on the core that the thread it waits for would need.
SPIN_COUNT = "10000"

LEAVE_AFTER_DRAIN_S = 4.0  # of the time to drain, kept for the steps in hand and a word of leave

_log = logs.get(__name__)


class Worker:
    """Owns nothing between `run`s: what it loads lives in the runner, what it owes in the link."""

    def __init__(self, settings: WorkerConfig, readiness: Readiness, servicer: WorkerServicer) -> None:
        self._settings = settings
        self._readiness = readiness
        self._servicer = servicer
        self._link: SchedulerLink | None = None  # None while loading
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Load, then serve the scheduler until drained. Raises CannotStart or ModelFilesError."""
        try:
            settings, started, phases = self._settings, time.perf_counter(), Phases()
            ready = await _in_thread(partial(_load, settings, phases))
            phases.end()
            link = SchedulerLink(
                ready.identity,
                StepExecutor(ready.runner),
                scheduler_addr=settings.scheduler_addr,
                readiness=self._readiness,
                report=step_report.report,
            )
            self._servicer.description = Description(identity=ready.identity, link=link, startup_s=dict(phases.seconds))
            self._link = link
            _log.info("worker_loaded", total_s=round(time.perf_counter() - started, 3), **phases.seconds)
            gc.freeze()  # what is loaded by now stays for ever: to look at it again holds a step up for tens of ms
            self._readiness.set(False, f"no scheduler at {settings.scheduler_addr} yet")
            await link.run()
        finally:
            self._ended.set()

    async def drain(self) -> None:
        """Finish the requests that are here; what is left of them shortly before the end goes to other workers."""
        if self._link is None:  # it still loads: nothing is in hand
            return
        self._link.drain()
        limit_s = max(0.0, self._settings.process.drain_timeout_s - LEAVE_AFTER_DRAIN_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        self._link.leave()
        await self._ended.wait()


async def _in_thread(load: "Callable[[], startup.Ready]") -> "startup.Ready":
    """What a thread loads; a process that leaves meanwhile does not wait for it."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[startup.Ready] = loop.create_future()

    def tell(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not loaded.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            told = partial(tell, loaded.set_result, load())
        except Exception as failed:  # noqa: BLE001 - raised where it is awaited
            told = partial(tell, loaded.set_exception, failed)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(told)

    threading.Thread(target=run, name="octavo-load", daemon=True).start()
    return await loaded


def _load(settings: WorkerConfig, phases: Phases) -> "startup.Ready":
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # libgomp reads it when torch is imported
    with phases.phase("import"):
        from gpu_worker import startup  # noqa: PLC0415 - torch takes seconds; --help and health do not wait for it
    with phases.phase("find_model"):
        files = model_files.resolve(settings.model)
    return startup.start(settings, files, phases)
