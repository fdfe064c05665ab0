"""One service, kept running: started again when its process ends, replaced when asked. Knows no other service."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from octavo.cli.child import Child, OnLine, Program
from octavo.cli.restarts import MAX_ENDS, WINDOW_S, Restarts

_WINDOW = f"within {WINDOW_S / 60:g} minutes"


class RestartFailed(Exception):
    """The service was not replaced; the message says what became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What to run, and how to see that it does its work."""

    program: Program
    ready: Callable[[int], Coroutine[Any, Any, None]]  # (process id): returns when that process can do its work
    takes_over: bool = False  # a second process can start beside the first and take its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Who hears of what: (name of the service, text)."""

    line: OnLine  # a line of output
    say: OnLine  # a sentence on what happened
    changed: Callable[[], None]  # process ids or numbers of restarts are others than before


@dataclass(slots=True, eq=False)
class _Run:
    """One process of the service."""

    child: Child
    started_at_s: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)  # it ended, and what was to be done about it is done
    is_told: bool = False  # to end

    def tell_to_end(self) -> None:
        """Once only: a process takes the second signal for an order to drop its work."""
        if not self.is_told:
            self.is_told = True
            self.child.terminate()


class KeptService:
    """Its tasks live in `tasks`; `given_up` is set, and `failure` says why, when it cannot be kept running."""

    def __init__(
        self, service: Service, reports: Reports, *, tasks: asyncio.TaskGroup, given_up: asyncio.Event
    ) -> None:
        self.name = service.program.name
        self.failure: str | None = None
        self._service = service
        self._reports = reports
        self._tasks = tasks
        self._given_up = given_up
        self._restarts = Restarts()
        self._was_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._run: _Run | None = None
        self._successor: _Run | None = None  # started beside `_run`, not yet ready
        self._leaving: list[_Run] = []  # have a successor and finish what they have in hand

    @property
    def pids(self) -> dict[str, int]:
        """Name -> process id of what runs now."""
        pids = {f"{self.name} (leaving)": run.child.pid for run in self._leaving}
        if self._run is not None and self._run.child.is_running:
            pids[self.name] = self._run.child.pid
        return pids

    @property
    def num_restarts(self) -> int:
        """After ends that nobody asked for."""
        return self._restarts.num_ends

    @property
    def last_lines(self) -> list[str]:
        return list(self._run.child.last_lines) if self._run is not None else []

    async def start(self) -> None:
        self._run = await self._started()

    async def ready(self) -> None:
        """Return once it has been ready."""
        await self._was_ready.wait()

    async def restart(self, *, limit_s: float) -> float | None:
        """Replace the process; the seconds in which none was ready, or None if one was there all the time.

        A process that does not end within `limit_s` is killed, unless it has a successor to do its work. Raises
        RestartFailed. Cancelled, it leaves the service running.
        """
        old = self._run
        assert old is not None, f"{self.name} was not started"
        if self._service.takes_over and old.ready.is_set() and old.child.is_running:
            await self._hand_over(old)
            return None
        began_s = _now_s()
        old.tell_to_end()
        if not await old.child.wait(limit_s):
            self._kill(old)
        await self._ready_after(old)
        return _now_s() - began_s

    async def stop(self, deadline_s: float) -> bool:
        """Drain every process of it; kill what is left at `deadline_s` of the loop's clock. True if nothing was."""
        self._stopping.set()
        runs = [run for run in (self._run, self._successor, *self._leaving) if run is not None]
        for run in runs:
            run.tell_to_end()
        in_time = True
        for run in runs:
            if not await run.child.wait(max(0.1, deadline_s - _now_s())):
                self._kill(run)
                in_time = False
        return in_time

    def kill(self) -> None:
        """End everything of it now, and start nothing again."""
        self._stopping.set()
        for run in (self._run, self._successor, *self._leaving):
            if run is not None:
                run.child.kill()

    async def gone(self, limit_s: float) -> None:
        """Wait for what was killed."""
        for run in (self._run, self._successor, *self._leaving):
            if run is not None:
                await run.child.wait(limit_s)

    async def _started(self) -> _Run:
        run = _Run(await Child.start(self._service.program, self._reports.line), _now_s())
        if self._stopping.is_set():
            run.child.kill()
        self._tasks.create_task(self._watch(run))
        return run

    async def _watch(self, run: _Run) -> None:
        noting = self._tasks.create_task(self._note_ready(run))
        await run.child.follow()
        noting.cancel()
        try:
            await self._after(run)
        finally:
            run.over.set()
            self._reports.changed()

    async def _note_ready(self, run: _Run) -> None:
        await self._service.ready(run.child.pid)
        run.ready.set()
        if self._was_ready.is_set():
            self._reports.say(self.name, f"is ready again, {_now_s() - run.started_at_s:.1f} s after its start")
        self._was_ready.set()

    async def _after(self, run: _Run) -> None:
        """What an end calls for."""
        if run in self._leaving:
            self._leaving.remove(run)
            self._reports.say(self.name, f"the one before has left with {run.child.ending()}")
        if run is not self._run or self._stopping.is_set():
            return
        if self._successor is not None:
            self._reports.say(self.name, f"ended with {run.child.ending()}; its successor is starting already")
            self._run = self._successor
        elif run.is_told:
            await self._replace()
        elif not self._was_ready.is_set() and run.child.has_refused:
            self._give_up(f"ended unexpectedly with {run.child.ending()}")
        else:
            await self._start_again(f"ended with {run.child.ending()}", ran_s=_now_s() - run.started_at_s)

    async def _start_again(self, how: str, *, ran_s: float) -> None:
        """After a pause, unless that was once too often; `how` it ended goes into the sentence on it."""
        self._reports.changed()
        restart = self._restarts.ended(_now_s(), ran_s=ran_s)
        if restart is None:
            self._give_up(f"{how}, more than {MAX_ENDS} times {_WINDOW}")
            return
        when = f"in {restart.pause_s:g} s" if restart.pause_s else "at once"
        self._reports.say(self.name, f"{how}; restarting {when} ({restart.num_ends} of {MAX_ENDS} {_WINDOW})")
        if not await _happened(self._stopping, restart.pause_s):
            await self._replace()

    async def _replace(self) -> None:
        try:
            self._run = await self._started()
        except OSError as refused:  # no more processes, descriptors or memory: that may pass
            await self._start_again(f"cannot be started ({refused.strerror})", ran_s=0.0)

    def _give_up(self, failure: str) -> None:
        self.failure = failure
        self._given_up.set()

    def _kill(self, run: _Run) -> None:
        self._reports.say(self.name, "did not stop within the limit and was killed")
        run.child.kill()

    async def _ready_after(self, old: _Run) -> None:
        """Return when a process that was started after `old` is ready."""
        await old.over.wait()
        while (run := self._run) is not None and run is not old:
            await _first(run.ready, run.over)
            if run.ready.is_set():
                return
            old = run
        raise RestartFailed(f"{self.name} is not running")

    async def _hand_over(self, old: _Run) -> None:
        """Start a second process; when it is ready the first finishes its work in the background."""
        if self._successor is not None:
            raise RestartFailed(f"{self.name} is being replaced already")
        try:
            new = self._successor = await self._started()
        except OSError as refused:
            raise RestartFailed(f"no second {self.name} can be started ({refused.strerror})") from None
        try:
            await _first(new.ready, new.over)
        finally:
            self._successor = None
            if not new.ready.is_set() and new is not self._run:
                new.child.kill()
        if not new.ready.is_set():
            raise RestartFailed(f"the new {self.name} ended with {new.child.ending()} before it was ready")
        if self._run is old:
            self._run = new
            self._leaving.append(old)
            old.tell_to_end()
        elif self._run is not new:  # the first died while the second was being started, and has been replaced already
            new.child.kill()
        self._reports.changed()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _happened(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether `event` was set within the time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _first(*events: asyncio.Event) -> None:
    """Return when one of `events` is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
