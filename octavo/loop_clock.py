"""A clock for judging others: it counts only time in which this process's event loop ran.

A process that was stopped (SIGSTOP, a paused container, a machine asleep) or held up for long finds, when it goes on,
that nobody has spoken to it for as long. That says nothing of the others. Whoever decides from silence or from waiting
that somebody else is gone measures by this clock; what clients were promised counts by the real one.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

TICK_S: Final = 0.25  # between two looks at the real clock
MOST_S: Final = 2 * TICK_S  # that the time between two looks counts for

_clocks: "WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClock]" = WeakKeyDictionary()


def now_s() -> float:
    """Seconds that the running loop has run since it was first asked. Call it in the loop."""
    loop = asyncio.get_running_loop()
    clock = _clocks.get(loop)
    if clock is None:
        clock = _clocks[loop] = _LoopClock(loop.time())
        loop.call_later(TICK_S, clock.tick, loop)
    return clock.at(loop.time())


def call_later(delay_s: float, callback: Callable[..., None], *arguments: Any) -> "Timer":
    """Like the loop's own, but by this clock."""
    return Timer(delay_s, callback, arguments)


class Timer:
    """Calls once, unless it is cancelled before."""

    def __init__(self, delay_s: float, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._due_s = now_s() + delay_s
        self._callback = callback
        self._arguments = arguments
        self._handle = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        left_s = self._due_s - now_s()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._callback(*self._arguments)


class Hearing:
    """When somebody was last heard."""

    def __init__(self) -> None:
        self._heard_s = now_s()

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard."""
        return now_s() - self._heard_s

    def heard(self) -> None:
        """Any word is a sign of life."""
        self._heard_s = now_s()

    async def silence(self, limit_s: float) -> None:
        """Return when nothing has been heard for `limit_s`."""
        while (left_s := limit_s - self.silent_s) > 0:  # noqa: ASYNC110 - a word of the other sets no event: it is cheap
            await asyncio.sleep(left_s)


async def is_done_within(future: "asyncio.Future[Any]", limit_s: float) -> bool:
    """Whether a future is done before `limit_s` have passed; it is not cancelled."""
    end_s = now_s() + limit_s
    while not future.done() and (left_s := end_s - now_s()) > 0:
        await asyncio.wait([future], timeout=left_s)
    return future.done()


class _LoopClock:
    """What one loop has counted."""

    def __init__(self, real_s: float) -> None:
        self._counted_s = 0.0
        self._looked_s = real_s

    def at(self, real_s: float) -> float:
        return self._counted_s + min(real_s - self._looked_s, MOST_S)

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        real_s = loop.time()
        self._counted_s, self._looked_s = self.at(real_s), real_s
        loop.call_later(TICK_S, self.tick, loop)
