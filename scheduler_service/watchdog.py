"""Watches one worker's requests: when they do not move, says so and why, asks again, and ends them if that is no use.

What counts as a stall, and when it is hopeless, is `core/progress`'s to say.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from octavo import logs
from octavo.loop_clock import now_s
from scheduler_service.core.progress import HOPELESS_AFTER_S, WAITS_FOR, Progress, Stall

WATCH_S: Final = 1.0  # between two looks

_log = logs.get(__name__)


class Watchdog:
    """Of one worker incarnation."""

    def __init__(
        self,
        worker_id: str,
        *,
        waits_for: Callable[[], str],
        ask_again: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self.stall: Stall | None = None  # the one there is
        self.num_stalls: Counter[str] = Counter(dict.fromkeys(WAITS_FOR, 0))
        self._worker_id = worker_id
        self._waits_for = waits_for
        self._ask_again = ask_again
        self._give_up = give_up
        self._progress = Progress(now_s())
        self._next_word_s = 0.0  # of a stall's life

    def moved(self) -> None:
        """A step was sent or answered, or the pool was opened."""
        self._progress.moved(now_s())

    async def watch(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            self._look()

    def _look(self) -> None:
        before = self.stall
        self.stall = stall = self._progress.stall(self._waits_for(), now_s())
        if stall is None:
            if before is not None:
                _log.info("progress_again", worker_id=self._worker_id, waited_for=before.waits_for,
                          stalled_s=round(before.duration_s, 1))  # fmt: skip
            return
        if before is None or before.waits_for != stall.waits_for:
            self.num_stalls[stall.waits_for] += 1
            self._next_word_s = 0.0
        if stall.duration_s >= self._next_word_s:
            self._next_word_s = stall.duration_s + HOPELESS_AFTER_S
            problem = f"requests wait for {WAITS_FOR[stall.waits_for]}"
            _log.error("no_progress", worker_id=self._worker_id, waits_for=stall.waits_for, problem=problem,
                       stalled_s=round(stall.duration_s, 1))  # fmt: skip
        if stall.is_hopeless:
            self._give_up(stall.waits_for)
        else:
            self._ask_again()
