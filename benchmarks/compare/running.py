"""One server as processes: its start until the first token, its sleep between two turns, its memory, its end."""

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.compare.line_target import LineTarget
from benchmarks.compare.servers import Server
from benchmarks.loads import TOKEN_IDS, Target
from octavo.cli.bench.http_target import HttpTarget
from octavo.cli.server_address import CannotAsk

START_LIMIT_S = 900.0  # a busy machine included; vLLM compiles for a minute on a quiet one
STOP_LIMIT_S = 60.0
ASK_AGAIN_S = 0.05
MIB = 1 << 20


class DidNotStart(Exception):
    """A server ended, or gave no token in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident memory of all processes, in MiB."""

    rss: float  # what they share counts for each of them
    pss: float  # once


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that has answered."""

    server: Server
    target: Target
    pid: int
    start_s: float  # from its command line to its first token

    def memory(self) -> Memory:
        found = [process.memory_full_info() for process in self.processes()]
        return Memory(rss=sum(each.rss for each in found) / MIB, pss=sum(each.pss for each in found) / MIB)

    def sleep(self) -> None:
        """Stop every process; nothing of it runs until `wake`."""
        for process in self.processes():
            process.suspend()

    def wake(self) -> None:
        for process in self.processes():
            process.resume()

    def processes(self) -> list[psutil.Process]:
        """The one that was started, and all its descendants."""
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]


@asynccontextmanager
async def started(server: Server, log: Path) -> AsyncIterator[Running]:
    """What it says goes to `log`. Raises DidNotStart if it ends or does not answer in time."""
    environ = {**os.environ, **server.environ, "XDG_RUNTIME_DIR": str(log.parent)}
    started_at = time.perf_counter()
    with log.open("w") as said:
        by_lines = server.port is None
        process = await asyncio.create_subprocess_exec(
            *server.command, stdin=PIPE if by_lines else DEVNULL, stdout=PIPE if by_lines else said, stderr=said,
            env=environ, start_new_session=True,
        )  # fmt: skip
    async with asyncio.TaskGroup() as tasks:
        target, reading = _target(server, process), None
        if isinstance(target, LineTarget):
            reading = tasks.create_task(target.read())
        try:
            await _first_token(target, process, log)
            start_s = time.perf_counter() - started_at
            yield Running(server=server, target=target, pid=process.pid, start_s=start_s)
        finally:
            await _end(process)
            if reading is not None:
                reading.cancel()


def _target(server: Server, process: Process) -> Target:
    if server.port is not None:
        return HttpTarget(f"http://127.0.0.1:{server.port}", {}, model=None)
    assert process.stdout is not None
    assert process.stdin is not None
    return LineTarget(process.stdout, process.stdin)


async def _first_token(target: Target, process: Process, log: Path) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_LIMIT_S):
            while process.returncode is None:
                with contextlib.suppress(CannotAsk):
                    if (await target.generate(TOKEN_IDS[:16], 1)).error is None:
                        return
                await asyncio.sleep(ASK_AGAIN_S)
    raise DidNotStart(f"{log.stem} did not start; its log ends with:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


async def _end(process: Process) -> None:
    """By SIGTERM, and all that is left of its group by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
