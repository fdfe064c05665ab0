"""Keeps a set of services running as one: all start together, what dies is started again, a signal drains them all.

Knows order and time limits; what the programs are and when they are ready is the caller's business.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.cli.kept_service import KeptService, Reports, Service

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED_LIMIT_S = 5.0  # to stop the others after one was given up; there is nothing left to drain for
KILL_WAIT_S = 5.0  # a killed process is gone at once, unless the kernel holds it in a device call


class Supervisor:
    """Runs `services` until a signal comes or one cannot be kept running. They are drained in the order given."""

    def __init__(self, services: Sequence[Service], *, drain_limit_s: float, reports: Reports) -> None:
        self._services = services
        self._drain_limit_s = drain_limit_s
        self._reports = reports
        self._kept: list[KeptService] = []
        self._ended = asyncio.Event()
        self._is_forced = False

    @property
    def names(self) -> list[str]:
        """Of the services, in the order in which they are drained."""
        return [service.program.name for service in self._services]

    @property
    def pids(self) -> dict[str, int]:
        """Name -> process id of what runs now."""
        return {name: pid for kept in self._kept for name, pid in kept.pids.items()}

    @property
    def num_restarts(self) -> dict[str, int]:
        """Name -> how often it was started again after an end that nobody asked for."""
        return {kept.name: kept.num_restarts for kept in self._kept if kept.num_restarts}

    async def run(self, beside: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Start all, await `beside` next to them, and return the exit status: 0 if they drained as asked.

        A second signal kills at once. On return no child is alive, whatever happened.
        """
        try:
            with self._signals():
                async with asyncio.TaskGroup() as tasks:
                    for service in self._services:
                        kept = KeptService(service, self._reports, tasks=tasks, given_up=self._ended)
                        self._kept.append(kept)
                        await kept.start()
                    running_beside = tasks.create_task(beside())
                    await self._ended.wait()
                    running_beside.cancel()
                    return await self._stop_all()
        finally:
            await self._kill_all()

    async def ready(self) -> None:
        """Return once every service has been ready."""
        for kept in self._kept:
            await kept.ready()

    async def restart(self, name: str) -> float | None:
        """Replace one service in good order; the seconds in which it was not there, if any. Raises RestartFailed."""
        (kept,) = (kept for kept in self._kept if kept.name == name)
        return await kept.restart(limit_s=self._drain_limit_s)

    async def _stop_all(self) -> int:
        limit_s = self._drain_limit_s
        failed = [kept for kept in self._kept if kept.failure is not None]
        if failed:
            limit_s = FAILED_LIMIT_S
            self._report(failed[0])
        deadline_s = asyncio.get_running_loop().time() + limit_s
        in_time = [await kept.stop(deadline_s) for kept in self._kept]
        return 0 if all(in_time) and not failed and not self._is_forced else 1

    def _report(self, failed: KeptService) -> None:
        self._reports.say(failed.name, f"{failed.failure}; its last lines:")
        for line in failed.last_lines:
            self._reports.say(failed.name, f"  {line}")
        self._reports.say(failed.name, "stopping the others")

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
            self._is_forced = True
            self._reports.say("serve", "second signal: killing what is left")
            for kept in self._kept:
                kept.kill()
            return
        self._reports.say("serve", f"draining, at most {self._drain_limit_s:g} s; a second Ctrl-C ends it now")
        self._ended.set()

    async def _kill_all(self) -> None:
        for kept in self._kept:
            kept.kill()
        for kept in self._kept:
            await kept.gone(KILL_WAIT_S)
