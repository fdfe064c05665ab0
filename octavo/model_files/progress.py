"""Shows how far a download is: a bar on a terminal, a line per tenth elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

_MIB = 2**20


class Progress:
    """`with Progress(...) as progress: progress.update(num_bytes)`; writes to stderr."""

    def __init__(self, what: str, *, total_bytes: int) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._next_percent = 0
        self._started_s = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._bar.start()
            self._bar.add_task(f"fetching {self._what}", total=self._total_bytes)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, num_bytes: int) -> None:
        """`num_bytes` have arrived in all."""
        num_bytes = min(num_bytes, self._total_bytes)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=num_bytes)
            return
        percent = num_bytes * 100 // self._total_bytes
        if percent < self._next_percent:
            return
        self._next_percent = percent // 10 * 10 + 10
        elapsed_s = time.monotonic() - self._started_s
        line = f"fetching {self._what}: {percent} %, {num_bytes / _MIB:.0f} of {self._total_bytes / _MIB:.0f} MiB"
        print(f"{line}, {elapsed_s:.1f} s", file=sys.stderr, flush=True)
