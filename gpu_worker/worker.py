"""One worker's life: find the model, load it, attach to the scheduler, work until told to stop."""

import asyncio
import os
import time
from typing import TYPE_CHECKING

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
            ready = await asyncio.to_thread(_load, settings, phases)
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
            self._readiness.set(False, f"no scheduler at {settings.scheduler_addr} yet")
            await link.run()
        finally:
            self._ended.set()

    async def drain(self) -> None:
        """Finish the steps in hand; while it still loads there are none."""
        if self._link is not None:
            self._link.leave()
            await self._ended.wait()


def _load(settings: WorkerConfig, phases: Phases) -> "startup.Ready":
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # libgomp reads it when torch is imported
    with phases.phase("import"):
        from gpu_worker import startup  # noqa: PLC0415 - torch takes seconds; --help and health do not wait for it
    with phases.phase("find_model"):
        files = model_files.resolve(settings.model)
    return startup.start(settings, files, phases)
