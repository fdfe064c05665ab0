"""Builds the layers of a model in several threads, and says how far it is when that takes long."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from octavo import logs

MAX_THREADS = 4  # more wait for the disk and hold more memory
PROGRESS_EVERY_S = 2.0

Layer = TypeVar("Layer")

_log = logs.get(__name__)


def in_order(build: Callable[[int], Layer], num_layers: int) -> Iterator[Layer]:
    """`build(0)`, `build(1)`, ...: numpy, torch and the C++ library let other threads run meanwhile."""
    started = logged_at = time.monotonic()
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="octavo-weights") as threads:
        for done, layer in enumerate(threads.map(build, range(num_layers)), start=1):
            now = time.monotonic()
            if now - logged_at >= PROGRESS_EVERY_S:
                logged_at = now
                _log.info(
                    "weights_loading",
                    percent=100 * done // num_layers,
                    layers=f"{done}/{num_layers}",
                    left_s=round((now - started) * (num_layers - done) / done),
                )
            yield layer
