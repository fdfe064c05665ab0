"""The thread that computes: takes commands from an inbox, and hands results to the event loop. It touches no gRPC.

All methods are called in the event loop, but `_work`, `_next` and `_hand_over`, which run in the thread.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Self

from gpu_worker.core.step import Step, StepResult
from gpu_worker.executor import StepExecutor
from octavo.loop_clock import now_s

Command = Callable[[], StepResult | None]


class ComputeThread:
    """Runs an executor in a thread of its own while the `async with` block lasts.

    `on_result` is called in the event loop, in order. A bug in the thread shows in `failed`.
    """

    def __init__(self, executor: StepExecutor, on_result: Callable[[StepResult], None]) -> None:
        self._executor = executor
        self._on_result = on_result
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._untold: Callable[[], None] | None = None  # tells the loop of the last command; the thread's own
        self._num_pending = 0
        self._moved_s = now_s()  # when the command in hand became the first, in the loop's time
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name="octavo-compute", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the thread after what is in the inbox."""
        self._inbox.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self.failed.cancel()

    def submit(self, step: Step) -> None:
        received_ns = time.perf_counter_ns()
        self._put(lambda: self._executor.execute(step, received_ns, launched=self._hand_over))

    def reset(self) -> None:
        """After the steps in hand, forget every request."""
        self._put(self._executor.reset)

    def renew(self) -> None:
        """After the steps in hand, start a new incarnation."""
        self._put(self._executor.renew)

    @property
    def held_s(self) -> float:
        """For how long the command in hand has not ended; 0 when there is none."""
        return now_s() - self._moved_s if self._num_pending else 0.0

    async def idle(self) -> None:
        """Return when nothing is in hand and every result has been handed over."""
        await self._idle.wait()

    def _put(self, command: Command) -> None:
        if not self._num_pending:
            self._moved_s = now_s()
        self._num_pending += 1
        self._idle.clear()
        self._inbox.put(command)

    def _work(self) -> None:
        try:
            while (command := self._next()) is not None:
                result = command()
                self._hand_over()
                self._untold = partial(self._done, result)
        except BaseException as bug:  # noqa: BLE001 - a thread must not die unseen: the process ends with it
            self._loop.call_soon_threadsafe(self._fail, bug)

    def _next(self) -> Command | None:
        if self._inbox.empty():
            self._hand_over()
        return self._inbox.get()

    def _hand_over(self) -> None:
        """Wake the event loop for the result of the last command, if that has not been done.

        Waking it gives the interpreter lock away; with a step waiting that is put off until the next forward pass is
        under way, where the lock is free most of the time.
        """
        if self._untold is not None:
            self._loop.call_soon_threadsafe(self._untold)
            self._untold = None

    def _done(self, result: StepResult | None) -> None:
        if result is not None:
            self._on_result(result)
        self._num_pending -= 1
        self._moved_s = now_s()
        if not self._num_pending:
            self._idle.set()

    def _fail(self, bug: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(bug)
