"""The processes of `octavo serve`, each under its own name: killed by the soak test, started again when they die."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.soaking.remains import Remains
from octavo.cli import readyz, serve_flags, serve_plan, serve_ready
from octavo.cli.child import Child, Program
from octavo.cli.serve_plan import Plan
from tests.e2e.stack import free_port

RESTART_PAUSE_S = 0.1
READY_LIMIT_S = 120.0
STOP_LIMIT_S = 40.0


class Stack:
    """Running processes. Their output goes to one file."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self.http_url = plan.http_url
        self.grpc_addr = plan.grpc_addr
        self.remains = Remains(plan)
        self._plan = plan
        self._log = log.open("a", encoding="utf-8")
        self._children: dict[str, Child] = {}
        self._is_stopping = False

    @property
    def names(self) -> list[str]:
        return [program.name for program in self._plan.programs]

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes themselves."""
        return {name: child.pid for name, child in self._children.items() if child.is_running}

    def kill(self, name: str) -> None:
        """SIGKILL; it starts again by itself."""
        self._children[name].kill()

    async def ready(self) -> None:
        """Every process is up and the gateway serves; every worker has its pool."""
        async with asyncio.timeout(READY_LIMIT_S):
            await serve_ready.wait(self._plan, serve_ready.Phases(), self._say)
            while len(self.pids) < len(self.names) or not await self._serves():  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.1)

    async def _serves(self) -> bool:
        num_workers = sum(name.startswith("worker") for name in self.names)
        return await readyz.missing(*self._plan.http_addr) is None and await self.remains.num_pools() == num_workers

    async def keep(self, program: Program) -> None:
        """One process after another, until the stack stops."""
        while not self._is_stopping:
            child = self._children[program.name] = await Child.start(program, self._say)
            await child.follow()
            self._say(program.name, f"ended with {child.ending()}")
            await asyncio.sleep(RESTART_PAUSE_S)

    async def stop(self) -> None:
        """In order, as `octavo serve` does; what does not end is killed."""
        self._is_stopping = True
        for program in self._plan.programs:
            child = self._children[program.name]
            child.terminate()
            if not await child.wait(STOP_LIMIT_S):
                self._say(program.name, "did not stop and was killed")
            child.kill()
        self._log.close()

    def _say(self, name: str, text: str) -> None:
        if not self._log.closed:
            self._log.write(f"{name}: {text}\n")
            self._log.flush()


@asynccontextmanager
async def running(folder: Path, flags: Sequence[str]) -> AsyncIterator[Stack]:
    """`octavo serve FLAGS` on free ports, without its own supervisor; ready. `folder` gets sockets and serve.log."""
    ports = ("--port", str(free_port()), "--grpc-port", str(free_port()))
    settings = serve_plan.load(serve_flags.parse([*flags, *ports]), os.environ)
    plan = serve_plan.make(settings, folder, os.environ)
    stack = Stack(plan, folder / "serve.log")
    async with asyncio.TaskGroup() as tasks:
        keepers = [tasks.create_task(stack.keep(program)) for program in plan.programs]
        try:
            await stack.ready()
            yield stack
        finally:
            await stack.stop()
            for keeper in keepers:
                keeper.cancel()
