"""Supervision of real child processes: order of draining, unexpected ends, limits, and that none survives."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octavo.cli.child import Program
from octavo.cli.supervisor import Supervisor

# Says when it is up and when it is asked to end, and then ends.
POLITE = """
import signal, sys
def end(*_):
    print("ending", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    signal.pause()
"""
STUBBORN = POLITE.replace("    sys.exit(0)", "    pass")
FAILING = "print('cannot go on', flush=True); raise SystemExit(3)"


class Scene:
    """A supervisor over programs, and everything that was said."""

    def __init__(self, programs: dict[str, str], *, drain_limit_s: float = 10.0) -> None:
        self.lines: list[tuple[str, str]] = []
        self.said: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            [program(name, code) for name, code in programs.items()],
            drain_limit_s=drain_limit_s,
            on_line=lambda name, text: self.lines.append((name, text)),
            say=lambda name, text: self.said.append((name, text)),
        )

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_true():  # noqa: ASYNC110 - what is waited for is in the lists above
                await asyncio.sleep(0.01)

    def is_up(self) -> bool:
        return len([line for line in self.lines if line[1] == "up"]) == len(self.supervisor.pids) > 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[int]"]:
        task = asyncio.create_task(self.supervisor.run(nothing_to_wait_for))
        await self.until(self.is_up)
        yield task
        async with asyncio.timeout(20):
            await task


def program(name: str, code: str) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), environ=dict(os.environ))


async def nothing_to_wait_for() -> None:
    pass


def is_alive(pid: int) -> bool:
    """A zombie waits for its parent's attention, it does not live."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signal_drains_in_the_order_given_and_succeeds(number: signal.Signals):
    scene = Scene({"gateway": POLITE, "scheduler": POLITE, "worker-0": POLITE})
    async with scene.running() as task:
        os.kill(os.getpid(), number)
    assert task.result() == 0
    assert [name for name, text in scene.lines if text == "ending"] == ["gateway", "scheduler", "worker-0"]
    assert not any(is_alive(pid) for pid in scene.supervisor.pids.values())


async def test_unexpected_end_names_the_child_its_status_and_last_lines_and_stops_the_others():
    scene = Scene({"gateway": POLITE, "worker-0": FAILING})
    assert await scene.supervisor.run(nothing_to_wait_for) == 1
    said = [text for name, text in scene.said if name == "worker-0"]
    assert said == ["ended unexpectedly with exit status 3; its last lines:", "  cannot go on", "stopping the others"]
    assert not any(is_alive(pid) for pid in scene.supervisor.pids.values())


async def test_killed_child_is_reported_by_its_signal():
    scene = Scene({"gateway": POLITE, "worker-0": POLITE})
    async with scene.running() as task:
        os.kill(scene.supervisor.pids["worker-0"], signal.SIGKILL)
    assert task.result() == 1
    assert any("signal SIGKILL" in text for _, text in scene.said)


async def test_child_that_does_not_stop_is_killed_at_the_limit():
    scene = Scene({"gateway": POLITE, "worker-0": STUBBORN}, drain_limit_s=0.5)
    async with scene.running() as task:
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 1
    assert ("worker-0", "did not stop within the limit and was killed") in scene.said
    assert not is_alive(scene.supervisor.pids["worker-0"])


async def test_second_signal_ends_at_once():
    scene = Scene({"gateway": STUBBORN, "scheduler": STUBBORN}, drain_limit_s=60.0)
    started_at = time.monotonic()
    async with scene.running() as task:
        os.kill(os.getpid(), signal.SIGINT)
        await scene.until(lambda: ("gateway", "ending") in scene.lines)
        os.kill(os.getpid(), signal.SIGINT)
    assert task.result() == 0
    assert time.monotonic() - started_at < 30
    assert not any(is_alive(pid) for pid in scene.supervisor.pids.values())


async def test_program_that_does_not_exist_is_an_unexpected_end():
    scene = Scene({})
    scene.supervisor = Supervisor(
        [Program(name="redis", command=("/no/such/program",), environ=dict(os.environ))],
        drain_limit_s=5.0, on_line=lambda *_: None, say=lambda name, text: scene.said.append((name, text)),
    )  # fmt: skip
    assert await scene.supervisor.run(nothing_to_wait_for) == 1
    assert any("cannot start /no/such/program: No such file" in text for _, text in scene.said)


async def test_line_longer_than_the_buffer_does_not_stop_the_reading():
    long_line = f"print('x' * {3 << 20}, flush=True)\n{POLITE}"
    scene = Scene({"gateway": long_line})
    async with scene.running() as task:
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0
    assert sum(len(text) for _, text in scene.lines if text.startswith("x")) == 3 << 20


async def test_grandchild_that_holds_the_output_open_does_not_hide_the_end():
    leaving = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n{FAILING}"
    )
    scene = Scene({"worker-0": leaving})
    async with asyncio.timeout(20):
        assert await scene.supervisor.run(nothing_to_wait_for) == 1
    assert ("worker-0", "  cannot go on") in scene.said


# A parent in a process of its own, so that it can be killed; prints the ids of its children.
PARENT = f"""
import asyncio, os, sys
from octavo.cli.child import Program
from octavo.cli.supervisor import Supervisor

async def say():
    print(*supervisor.pids.values(), flush=True)

command = (sys.executable, "-c", {STUBBORN!r})
programs = [Program(name=str(i), command=command, environ=dict(os.environ)) for i in range(3)]
supervisor = Supervisor(programs, drain_limit_s=5, on_line=lambda *_: None, say=lambda *_: None)
asyncio.run(supervisor.run(say))
"""


def test_no_child_survives_when_the_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_alive(pid) for pid in pids)
