"""SIGTERM and SIGINT as events: the first asks the process to finish its work, the second to leave now."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from octavo import logs

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FORCED_STATUS: Final = 1  # exit status of a process that was told to leave its work unfinished
FORCED_LIMIT_S: Final = 1.0  # for such a process to close what it has open; whatever hangs then is left to the kernel

_log = logs.get(__name__)


class Forced(Exception):
    """Nobody wants to wait for the work in hand."""


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a process's main to its end; one that was forced to end exits with FORCED_STATUS.

    A signal that comes before `signals` takes over ends the process at once, with status 0. The first process of a
    container would not hear it otherwise: the kernel keeps from it what it does not handle.
    """
    for number in SIGNALS:
        signal.signal(number, _leave)
    try:
        asyncio.run(main())
    except* Forced:
        raise SystemExit(FORCED_STATUS) from None


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


class Shutdown:
    """What the operator has asked for so far."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def ask(self, reason: str) -> None:
        """Request the shutdown; asked again, force it: the process is gone FORCED_LIMIT_S later at the latest."""
        asked_before = self.requested.is_set()
        _log.info("shutdown_forced" if asked_before else "shutdown_requested", reason=reason)
        if asked_before and not self.forced.is_set():
            hard_end = threading.Timer(FORCED_LIMIT_S, os._exit, (FORCED_STATUS,))
            hard_end.daemon = True
            hard_end.start()
        (self.forced if asked_before else self.requested).set()

    async def finish(self, work: Awaitable[Any], timeout_s: float | None) -> bool:
        """Await `work` until it is done or `timeout_s` have passed; true if it was done. Raises Forced when told to.

        What does not finish is cancelled and waited for. An exception of `work` is raised here.
        """
        task = asyncio.ensure_future(work)
        forced = asyncio.ensure_future(self.forced.wait())
        await asyncio.wait({task, forced}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        is_done = task.done()
        for pending in (task, forced):
            pending.cancel()
        await asyncio.wait({task, forced})
        if is_done:
            task.result()
        elif self.forced.is_set():
            raise Forced
        return is_done


@contextmanager
def signals() -> Iterator[Shutdown]:
    """Turn this process's signals into a Shutdown while the block runs; must be entered in the event loop."""
    shutdown = Shutdown()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, shutdown.ask, number.name)
    try:
        yield shutdown
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
