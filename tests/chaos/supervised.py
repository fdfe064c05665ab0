"""One real process, started again whenever it ends, as `octavo serve` and compose do. Its output goes to a file."""

import asyncio
import os
import signal
import time
from pathlib import Path

from octavo.cli.child import Child, Program

FRESH_AFTER_S = 60.0  # a process that ran this long is started again at once
LONGEST_PAUSE_S = 10.0


class Supervised:
    """`run` starts it and keeps it running; the other methods harm it."""

    def __init__(self, program: Program, log: Path) -> None:
        self.name = program.name
        self.log = log
        self.started_s: list[float] = []  # time.monotonic() of each start
        self._crashes: list[str] = []
        self._program = program
        self._child: Child | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()  # cleared while an end that was asked for is awaited
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def num_starts(self) -> int:
        return len(self.started_s)

    def take_crashes(self) -> list[str]:
        """Ends that nobody asked for, since the last time."""
        taken, self._crashes = self._crashes, []
        return taken

    async def run(self) -> None:
        """Never returns; when cancelled the process is killed."""
        num_deaths = 0
        try:
            with self.log.open("a", buffering=1) as log:
                while True:
                    self._child = await Child.start(self._program, lambda _, line: print(line, file=log))
                    self.started_s.append(time.monotonic())
                    self._started.set()
                    await self._child.follow()
                    print(f"--- {self.name} ended with {self._child.ending()}", file=log)
                    if self._ended.is_set():
                        self._crashes.append(f"{self.name} ended by itself with {self._child.ending()}; see {self.log}")
                    self._started.clear()
                    self._ended.set()
                    num_deaths = 1 if time.monotonic() - self.started_s[-1] > FRESH_AFTER_S else num_deaths + 1
                    await asyncio.sleep(_pause_s(num_deaths))
        finally:
            if self._child is not None:
                self._child.kill()
                await self._child.wait(5)

    async def kill(self) -> None:
        """SIGKILL; returns when it has been started again."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """SIGTERM; returns when it has ended and been started again."""
        await self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nothing happens if it has died meanwhile."""
        if self._child is not None and self._child.is_running:
            os.kill(self.pid, signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> None:
        await self._started.wait()
        self._ended.clear()
        os.kill(self.pid, number)
        await self._ended.wait()
        await self._started.wait()

    @property
    def _running(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child


def _pause_s(num_deaths: int) -> float:
    """Before the start after this many deaths in a row: none, 0.5 s, 1 s, 2 s and so on."""
    return 0.0 if num_deaths == 1 else min(LONGEST_PAUSE_S, 0.25 * 2 ** (num_deaths - 1))
