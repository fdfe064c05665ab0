"""How long each phase of the start takes, for the log, for Describe, and as a trace of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo import telemetry


class Phases:
    """Seconds by phase, in order, and a `startup` span with a child for each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._root = telemetry.start_span("startup")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with telemetry.span(name, parent=self._root.get_span_context()):
            yield
        self.seconds[name] = round(time.perf_counter() - started, 3)

    def end(self) -> None:
        self._root.end()
