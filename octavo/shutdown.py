"""SIGTERM and SIGINT as events: the first asks the process to finish its work, the second to leave now."""

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo import logs

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logs.get(__name__)


class Shutdown:
    """What the operator has asked for so far."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def ask(self, reason: str) -> None:
        """Request the shutdown; asked again, force it."""
        asked_before = self.requested.is_set()
        _log.info("shutdown_forced" if asked_before else "shutdown_requested", reason=reason)
        (self.forced if asked_before else self.requested).set()

    async def finish(self, work: Awaitable[Any], timeout_s: float) -> bool:
        """Await `work` until it is done, `timeout_s` have passed or the shutdown is forced; true if it was done.

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
