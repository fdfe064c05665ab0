"""Scheduler, KV cache service and workers as they are, with a proxy that loses messages on each of the inner wires.

Only the model is a fake: it checks every slot that it reads.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.executor import StepExecutor
from gpu_worker.scheduler_link import SchedulerLink
from octavo.health import Readiness
from scheduler_service.core.plan import Limits
from scheduler_service.worker_loop import WorkerLoop
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_runner import PagedRunner, an_identity
from tests.faults import proxy
from tests.faults.proxy import Direction, Fault, Faults, Proxy
from tests.scheduler_service.stack import Stack

WORKER_LINK = "/octavo.worker.v1.WorkerLinkService/Connect"
PLAN_STEP = "/octavo.kvcache.v1.KVCacheService/PlanStep"
SESSION = "/octavo.scheduler.v1.SchedulerService/Session"

Tables = dict[int, tuple[int, ...]]  # handle -> block ids


def no_faults() -> Faults:
    return Faults(kinds=list(Fault), directions=[], seed=0, rate=0.0, most=0)


@dataclass(slots=True)
class Worker:
    """A real worker but for its model."""

    link: SchedulerLink
    runner: PagedRunner
    running: "asyncio.Task[None]"


class Rig:
    """What a test starts and looks into."""

    def __init__(self, stack: Stack, worker_wire: Proxy, plan_wire: Proxy, *, scheduler_addr: str) -> None:
        self.session_wire: Proxy
        self.session_addr = ""  # where a gateway dials that is to meet the faults of its wire; `gateway` does not
        self.stack = stack
        self.worker_wire = worker_wire
        self.plan_wire = plan_wire
        self.workers: dict[str, Worker] = {}
        self.gateway = FakeGateway()
        self._scheduler_addr = scheduler_addr

    async def add_worker(
        self, worker_id: str = "w0", *, num_blocks: int = 64, step_s: float = 0.001, faulty_seqs: Collection[int] = ()
    ) -> Worker:
        """Start a worker and wait until it may be given requests."""
        runner = PagedRunner(num_blocks=num_blocks, step_s=step_s, faulty_seqs=faulty_seqs)
        link = SchedulerLink(
            an_identity(worker_id, num_blocks),
            StepExecutor(runner),  # type: ignore[arg-type]
            scheduler_addr=self._scheduler_addr,
            readiness=Readiness(),
            report=lambda _: None,
        )
        worker = self.workers[worker_id] = Worker(link, runner, asyncio.create_task(link.run()))
        workers = self.stack.engine.workers
        await self.stack.until(lambda: worker_id in [loop.worker_id for loop in workers.open_loops])
        return worker

    def loop(self, worker_id: str = "w0") -> WorkerLoop:
        return self.stack.engine.workers.get(worker_id)

    async def equal_tables(self, worker_id: str = "w0") -> Tables:
        """The tables of running requests, once the three who keep them have been seen to agree while nothing moves.

        None if everything there has ended.

        The results of the worker are held back until it has run every step that was sent: then no plan is under way,
        because the window is full, and all three stand at the same step.
        """
        async with asyncio.timeout(20):
            while self.loop(worker_id).num_requests:
                self.worker_wire.hold(Direction.UP)
                try:
                    async with asyncio.timeout(0.4):
                        while not self._is_still(worker_id):  # noqa: ASYNC110 - nobody tells a test
                            await asyncio.sleep(0.005)
                    return self._compared(worker_id)
                except TimeoutError:
                    pass  # a message was lost: let the redial happen
                finally:
                    self.worker_wire.let_go(Direction.UP)
                await asyncio.sleep(0.3)
        return {}

    def _is_still(self, worker_id: str) -> bool:
        core, link = self.loop(worker_id).core, self.workers[worker_id].link
        flight = core._flight
        return flight.is_full and core._wishes is None and link._last_seq == flight.next_seq - 1

    def _compared(self, worker_id: str) -> Tables:
        believed = {request.handle: tuple(request.block_ids) for request in self.loop(worker_id).core.running}
        (pool,) = (pool for pool in self.stack.pools if pool.key.pool_id == worker_id)
        held = {handle: tuple(pool.manager.block_table(handle)) for handle in believed}
        state = self.workers[worker_id].runner.state
        slots = {handle: slot for handle, slot in state._slot_of.items() if handle in believed}
        mirrored = {
            handle: tuple(state.block_table[slot, : state.num_blocks[slot]].tolist()) for handle, slot in slots.items()
        }
        assert believed == held, f"scheduler {believed}, KV cache service {held}"
        assert believed == mirrored, f"scheduler {believed}, worker {mirrored}"
        return believed

    async def kill(self, worker_id: str) -> None:
        """A worker is gone without a word."""
        running = self.workers.pop(worker_id).running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        for worker in self.workers.values():
            worker.link.leave()
        await asyncio.wait_for(asyncio.gather(*(worker.running for worker in self.workers.values())), 15)


@asynccontextmanager
async def started(
    folder: Path,
    *,
    on_worker_link: Faults | None = None,
    on_plan_step: Faults | None = None,
    on_session: Faults | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Rig]:
    """Everything but the workers, which dial through the proxy."""
    async with AsyncExitStack() as exits:
        stack = Stack(folder, exits)
        plan_addr, worker_addr = f"unix:{folder}/plan.sock", f"unix:{folder}/link.sock"
        plan_wire = await exits.enter_async_context(
            proxy.listening(plan_addr, stack.kvcache_addr, PLAN_STEP, faults=on_plan_step or no_faults())
        )
        worker_wire = await exits.enter_async_context(
            proxy.listening(worker_addr, stack.scheduler_addr, WORKER_LINK, faults=on_worker_link or no_faults())
        )
        rig = Rig(stack, worker_wire, plan_wire, scheduler_addr=worker_addr)
        rig.session_addr = f"unix:{folder}/session.sock"
        rig.session_wire = await exits.enter_async_context(
            proxy.listening(rig.session_addr, stack.scheduler_addr, SESSION, faults=on_session or no_faults())
        )
        try:
            await stack.start_kvcache()
            stack.kvcache_dialled = plan_addr
            await stack.start_scheduler(limits)
            await stack.dial(rig.gateway)
            yield rig
        finally:
            try:
                await rig.close()
            finally:
                await stack.close()
