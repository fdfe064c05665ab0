"""Keeps a set of child processes running as one: all start together, any unexpected end ends all, a signal drains.

Knows order and time limits; what the programs are and when they are ready is the caller's business.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager

from octavo.cli.child import Child, OnLine, Program

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED_LIMIT_S = 5.0  # to stop the others after one has died; there is nothing left to drain for
KILL_WAIT_S = 5.0  # a killed process is gone at once, unless the kernel holds it in a device call


class Supervisor:
    """Runs `programs` until a signal comes or one of them ends. They are drained in the order given."""

    def __init__(self, programs: Sequence[Program], *, drain_limit_s: float, on_line: OnLine, say: OnLine) -> None:
        """`on_line` gets the children's output, `say` (name, sentence) what happens to them."""
        self._programs = programs
        self._drain_limit_s = drain_limit_s
        self._on_line = on_line
        self._say = say
        self._children: list[Child] = []
        self._ended = asyncio.Event()
        self._dead: Child | None = None
        self._is_stopping = False

    @property
    def pids(self) -> dict[str, int]:
        """Name -> process id of what has been started."""
        return {child.name: child.pid for child in self._children}

    async def run(self, when_started: Callable[[], Coroutine[None, None, None]]) -> int:
        """Start all, await `when_started` beside them, and return the exit status: 0 if they drained as asked.

        A second signal kills at once. On return no child is alive, whatever happened.
        """
        try:
            with self._signals():
                async with asyncio.TaskGroup() as tasks:
                    for program in self._programs:
                        child = await Child.start(program, self._on_line)
                        self._children.append(child)
                        tasks.create_task(self._watch(child))
                    starting = tasks.create_task(when_started())
                    await self._ended.wait()
                    starting.cancel()
                    return await self._stop_all()
        finally:
            await self._kill_all()

    async def _watch(self, child: Child) -> None:
        await child.follow()
        if not self._is_stopping and self._dead is None:
            self._dead = child
        self._ended.set()

    async def _stop_all(self) -> int:
        self._is_stopping = True
        limit_s = self._drain_limit_s
        if self._dead is not None:
            limit_s = FAILED_LIMIT_S
            self._report(self._dead)
        deadline = asyncio.get_running_loop().time() + limit_s
        in_time = [await self._stop(child, deadline) for child in self._children]
        return 0 if self._dead is None and all(in_time) else 1

    async def _stop(self, child: Child, deadline: float) -> bool:
        """Drain one child; kill it at the deadline. True if that was not needed."""
        child.terminate()
        if await child.wait(max(0.1, deadline - asyncio.get_running_loop().time())):
            return True
        self._say(child.name, "did not stop within the limit and was killed")
        child.kill()
        return False

    def _report(self, dead: Child) -> None:
        self._say(dead.name, f"ended unexpectedly with {dead.ending()}; its last lines:")
        for line in dead.last_lines:
            self._say(dead.name, f"  {line}")
        self._say(dead.name, "stopping the others")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._ended.is_set():
            self._say("serve", "second signal: killing what is left")
            for child in self._children:
                child.kill()
            return
        self._say("serve", f"draining, at most {self._drain_limit_s:g} s; a second Ctrl-C ends it now")
        self._is_stopping = True
        self._ended.set()

    async def _kill_all(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            await child.wait(KILL_WAIT_S)
