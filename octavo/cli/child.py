"""One child process: started on a leash, its output read line by line, ended by signals. Knows no service."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
NUM_LAST_LINES = 20  # kept for the report of an unexpected end
MAX_LINE_BYTES = 1 << 20
OUTPUT_GRACE_S = 1.0  # how long a grandchild may hold the output open after the child ended

OnLine = Callable[[str, str], None]  # (name of the child, one line of its output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, and under which name it is spoken of."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Output:
    """The reading end of a child's standard output and error."""

    lines: asyncio.StreamReader
    transport: asyncio.BaseTransport


class Child:
    """A running program. It leads a process group of its own, so a Ctrl-C in the terminal reaches only the parent."""

    def __init__(
        self, program: Program, process: asyncio.subprocess.Process, output: "_Output", *, on_line: OnLine
    ) -> None:
        self.name = program.name
        self.pid = process.pid
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._process = process
        self._output = output
        self._on_line = on_line

    @classmethod
    async def start(cls, program: Program, on_line: OnLine) -> "Child":
        """A program that cannot be started is one that ends with status 1 and says so.

        Raises OSError if this machine has no process or descriptor left for it.
        """
        # A pipe of our own: asyncio's would make wait() wait for grandchildren that hold it open, too.
        reading_end, writing_end = os.pipe()
        lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading_end, "rb", buffering=0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *program.command),
                env=dict(program.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing_end,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            transport.close()
            raise
        finally:
            os.close(writing_end)
        return cls(program, process, _Output(lines, transport), on_line=on_line)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def follow(self) -> None:
        """Hand on every line of output until the process has ended."""
        reading = asyncio.create_task(self._read())
        try:
            await self._process.wait()
            await asyncio.wait({reading}, timeout=OUTPUT_GRACE_S)
        finally:
            reading.cancel()
            self._output.transport.close()

    def terminate(self) -> None:
        """Ask it to end; nothing happens if it has."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything it started, now."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def wait(self, timeout_s: float) -> bool:
        """True once it has ended, false if it still runs after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    @property
    def has_refused(self) -> bool:
        """It ended on its own with an error, as a program does whose settings or surroundings do not let it start."""
        return self._process.returncode is not None and self._process.returncode > 0

    def ending(self) -> str:
        """How it ended, in words."""
        status = self._process.returncode
        assert status is not None, f"{self.name} still runs"
        if status >= 0:
            return f"exit status {status}"
        return f"signal {signal.Signals(-status).name}"

    async def _read(self) -> None:
        while line := await _read_line(self._output.lines):
            text = line.decode(errors="replace").rstrip()
            self.last_lines.append(text)
            self._on_line(self.name, text)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line; of one that is longer than the buffer, a buffer full."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as rest:
        return rest.partial
    except asyncio.LimitOverrunError as overrun:
        return await stream.readexactly(overrun.consumed)
