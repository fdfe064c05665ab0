"""`octavo serve` for the soak test, which kills its processes by name; it starts them again."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.soaking.remains import Remains
from octavo.cli import runtime
from octavo.cli.runtime import ServeState
from tests.e2e import stack as e2e

READY_LIMIT_S = 120.0
LOOK_EVERY_S = 0.1


class Stack:
    """A server, and what it says of itself."""

    def __init__(self, served: e2e.Stack) -> None:
        self._served = served
        self.http_url = served.url
        self.grpc_addr = served.target
        state = self._state
        self.names = list(state.pids)
        self.remains = Remains(state)

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that run."""
        return {name: pid for name, pid in self._state.pids.items() if psutil.pid_exists(pid)}

    def kill(self, name: str) -> None:
        """SIGKILL; it starts again by itself."""
        os.kill(self.pids[name], signal.SIGKILL)

    async def ready(self) -> None:
        """Every process is up and the gateway serves; every worker has its pool."""
        async with asyncio.timeout(READY_LIMIT_S):
            while not await self._is_whole():  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(LOOK_EVERY_S)

    async def _is_whole(self) -> bool:
        if len(self.pids) < len(self.names) or not await asyncio.to_thread(self._served.is_ready):
            return False
        return await self.remains.num_pools() == sum(name.startswith("worker") for name in self.names)

    @property
    def _state(self) -> ServeState:
        (state,) = runtime.running(self._served.environ)
        return state


@contextmanager
def running(folder: Path, flags: Sequence[str]) -> Iterator[Stack]:
    """`octavo serve FLAGS` on free ports, ready; it must end as it should. `folder` gets its log, serve-PORT.log."""
    with e2e.Stack(folder, *flags) as served:
        yield Stack(served)
