"""A supervisor over small programs, and everything that was said."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from octavo.cli.child import Program
from octavo.cli.kept_service import Reports, Service
from octavo.cli.supervisor import Supervisor

# Says when it is up and when it is asked to end, and then ends.
POLITE = """
import os, signal, sys
def end(*_):
    print("ending", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(f"up {os.getpid()}", flush=True)
while True:
    signal.pause()
"""
STUBBORN = POLITE.replace("    sys.exit(0)", "    pass")
FAILING = "print('cannot go on', flush=True); raise SystemExit(3)"
UP_AND_FAILING = f"import os, time; print(f'up {{os.getpid()}}', flush=True); time.sleep(0.2)\n{FAILING}"


class Scene:
    """A supervisor over programs, and everything that was said. A program is ready when it says that it is up."""

    def __init__(self, programs: dict[str, str], *, drain_limit_s: float = 10.0, takes_over: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self.said: list[tuple[str, str]] = []
        self.num_changes = 0
        self.supervisor = Supervisor(
            [
                Service(program=program(name, code), ready=self.until_up, takes_over=takes_over)
                for name, code in programs.items()
            ],
            drain_limit_s=drain_limit_s,
            reports=Reports(
                line=lambda name, text: self.lines.append((name, text)),
                say=lambda name, text: self.said.append((name, text)),
                changed=self._changed,
            ),
        )

    def _changed(self) -> None:
        self.num_changes += 1

    async def until_up(self, pid: int) -> None:
        await self.until(lambda: any(text == f"up {pid}" for _, text in self.lines))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_true():  # noqa: ASYNC110 - what is waited for is in the lists above
                await asyncio.sleep(0.01)

    def is_refused_descriptors(self) -> bool:
        return any("cannot be started (Too many open files)" in text for _, text in self.said)

    async def until_replaced(self, name: str, pid: int) -> int:
        """The process id of the one that is there, up, instead of `pid`."""
        await self.until(lambda: self.supervisor.pids.get(name, pid) != pid)
        new_pid = self.supervisor.pids[name]
        await self.until_up(new_pid)
        return new_pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[int]"]:
        task = asyncio.create_task(self.supervisor.run(nothing_beside))
        await asyncio.sleep(0)
        await self.until(lambda: len(self.supervisor.pids) == len(self.supervisor.names))
        async with asyncio.timeout(20):
            await self.supervisor.ready()
        yield task
        async with asyncio.timeout(20):
            await task


def program(name: str, code: str) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), environ=dict(os.environ))


async def nothing_beside() -> None:
    pass


def is_alive(pid: int) -> bool:
    """A zombie waits for its parent's attention, it does not live."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
