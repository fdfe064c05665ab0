"""Supervision of real child processes: order of draining, restarts, limits, and that none survives."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octavo.cli import restarts
from octavo.cli.child import Program
from octavo.cli.kept_service import Reports, RestartFailed, Service
from octavo.cli.supervisor import Supervisor

# Says when it is up and when it is asked to end, and then ends.
POLITE = """
import os, signal, sys
def end(*_):
    print("ending", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(f"up {os.getpid()}", flush=True)
while True:
    signal.pause()
"""
STUBBORN = POLITE.replace("    sys.exit(0)", "    pass")
FAILING = "print('cannot go on', flush=True); raise SystemExit(3)"
UP_AND_FAILING = f"import os, time; print(f'up {{os.getpid()}}', flush=True); time.sleep(0.2)\n{FAILING}"


class Scene:
    """A supervisor over programs, and everything that was said. A program is ready when it says that it is up."""

    def __init__(self, programs: dict[str, str], *, drain_limit_s: float = 10.0, takes_over: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self.said: list[tuple[str, str]] = []
        self.num_changes = 0
        self.supervisor = Supervisor(
            [
                Service(program=program(name, code), ready=self.until_up, takes_over=takes_over)
                for name, code in programs.items()
            ],
            drain_limit_s=drain_limit_s,
            reports=Reports(
                line=lambda name, text: self.lines.append((name, text)),
                say=lambda name, text: self.said.append((name, text)),
                changed=self._changed,
            ),
        )

    def _changed(self) -> None:
        self.num_changes += 1

    async def until_up(self, pid: int) -> None:
        await self.until(lambda: any(text == f"up {pid}" for _, text in self.lines))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_true():  # noqa: ASYNC110 - what is waited for is in the lists above
                await asyncio.sleep(0.01)

    async def until_replaced(self, name: str, pid: int) -> int:
        """The process id of the one that is there, up, instead of `pid`."""
        await self.until(lambda: self.supervisor.pids.get(name, pid) != pid)
        new_pid = self.supervisor.pids[name]
        await self.until_up(new_pid)
        return new_pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[int]"]:
        task = asyncio.create_task(self.supervisor.run(nothing_beside))
        await asyncio.sleep(0)
        await self.until(lambda: len(self.supervisor.pids) == len(self.supervisor.names))
        async with asyncio.timeout(20):
            await self.supervisor.ready()
        yield task
        async with asyncio.timeout(20):
            await task


def program(name: str, code: str) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), environ=dict(os.environ))


async def nothing_beside() -> None:
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
    assert scene.supervisor.pids == {}


async def test_refusal_at_the_start_names_the_child_its_status_and_last_lines_and_stops_the_others():
    scene = Scene({"gateway": POLITE, "worker-0": FAILING})
    assert await scene.supervisor.run(nothing_beside) == 1
    said = [text for name, text in scene.said if name == "worker-0"]
    assert said == ["ended unexpectedly with exit status 3; its last lines:", "  cannot go on", "stopping the others"]
    assert scene.supervisor.pids == {}


@pytest.mark.parametrize(("number", "ending"), [
    (signal.SIGKILL, "signal SIGKILL"), (signal.SIGTERM, "exit status 0"),
])  # fmt: skip
async def test_child_that_ends_is_started_again_and_the_others_go_on(number: signal.Signals, ending: str):
    scene = Scene({"gateway": POLITE, "worker-0": POLITE})
    async with scene.running() as task:
        before = scene.supervisor.pids
        os.kill(before["worker-0"], number)
        assert await scene.until_replaced("worker-0", before["worker-0"]) != before["worker-0"]
        assert scene.supervisor.pids["gateway"] == before["gateway"]
        assert scene.supervisor.num_restarts == {"worker-0": 1}
        assert scene.num_changes > 0
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0
    assert ("worker-0", f"ended with {ending}; restarting at once (1 of 10 within 5 minutes)") in scene.said


async def test_child_killed_before_it_was_ready_is_started_again():
    scene = Scene({"worker-0": POLITE.replace("print(f", "import time; time.sleep(0.5); print(f")})
    task = asyncio.create_task(scene.supervisor.run(nothing_beside))
    await scene.until(lambda: "worker-0" in scene.supervisor.pids)
    pid = scene.supervisor.pids["worker-0"]
    os.kill(pid, signal.SIGKILL)
    await scene.until_replaced("worker-0", pid)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0


async def test_child_that_ends_again_and_again_is_given_up_with_its_last_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(restarts, "PAUSES_S", (0.0, 0.01))
    scene = Scene({"gateway": POLITE, "worker-0": UP_AND_FAILING})
    async with asyncio.timeout(20):
        assert await scene.supervisor.run(nothing_beside) == 1
    said = [text for name, text in scene.said if name == "worker-0" and "ready" not in text]
    assert said[1] == "ended with exit status 3; restarting in 0.01 s (2 of 10 within 5 minutes)"
    assert said[9].endswith("(10 of 10 within 5 minutes)")
    assert said[10] == "ended with exit status 3, more than 10 times within 5 minutes; its last lines:"
    assert said[-2:] == ["  cannot go on", "stopping the others"]
    assert scene.supervisor.pids == {}


async def test_machine_without_descriptors_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(restarts, "PAUSES_S", (0.0, 0.2))
    scene = Scene({"gateway": POLITE, "worker-0": POLITE})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with scene.running() as task:
        pid = scene.supervisor.pids["worker-0"]
        next_free = os.dup(0)
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
        try:
            os.kill(pid, signal.SIGKILL)
            await scene.until(lambda: any("cannot be started (Too many open files)" in text for _, text in scene.said))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await scene.until_replaced("worker-0", pid)
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0


async def test_signal_ends_the_wait_for_a_restart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(restarts, "PAUSES_S", (60.0,))
    scene = Scene({"gateway": POLITE, "worker-0": POLITE})
    async with scene.running() as task:
        os.kill(scene.supervisor.pids["worker-0"], signal.SIGKILL)
        await scene.until(lambda: any("restarting in 60 s" in text for _, text in scene.said))
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0


async def test_restart_that_was_asked_for_drains_and_does_not_count():
    scene = Scene({"gateway": POLITE, "scheduler": POLITE})
    async with scene.running():
        before = scene.supervisor.pids
        pause_s = await scene.supervisor.restart("scheduler")
        assert pause_s is not None
        assert 0 < pause_s < 20
        assert ("scheduler", "ending") in scene.lines
        assert scene.supervisor.pids["scheduler"] != before["scheduler"]
        assert scene.supervisor.num_restarts == {}
        os.kill(os.getpid(), signal.SIGTERM)


async def test_restart_kills_what_does_not_drain_within_the_limit():
    scene = Scene({"scheduler": STUBBORN}, drain_limit_s=0.5)
    async with scene.running() as task:
        await scene.supervisor.restart("scheduler")
        assert ("scheduler", "did not stop within the limit and was killed") in scene.said
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 1


async def test_successor_is_ready_before_the_first_is_told_to_end():
    scene = Scene({"gateway": POLITE}, takes_over=True)
    async with scene.running():
        before = scene.supervisor.pids["gateway"]
        assert await scene.supervisor.restart("gateway") is None
        after = scene.supervisor.pids["gateway"]
        await scene.until(lambda: not is_alive(before))
        told = [text for _, text in scene.lines]
        assert told.index(f"up {after}") < told.index("ending")
        await scene.until(lambda: list(scene.supervisor.pids) == ["gateway"])
        os.kill(os.getpid(), signal.SIGTERM)


async def test_one_that_is_leaving_is_listed_and_drained_with_the_rest():
    scene = Scene({"gateway": STUBBORN}, takes_over=True, drain_limit_s=0.5)
    async with scene.running() as task:
        before = scene.supervisor.pids["gateway"]
        await scene.supervisor.restart("gateway")
        assert scene.supervisor.pids["gateway (leaving)"] == before
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 1
    assert not is_alive(before)


async def test_successor_that_refuses_to_start_leaves_the_first_in_place(tmp_path: Path):
    once = f"""
import pathlib
mark = pathlib.Path({str(tmp_path / "mark")!r})
if mark.exists():
    raise SystemExit(4)
mark.touch()
{POLITE}"""
    scene = Scene({"gateway": once}, takes_over=True)
    async with scene.running() as task:
        before = scene.supervisor.pids
        with pytest.raises(RestartFailed, match="the new gateway ended with exit status 4 before it was ready"):
            await scene.supervisor.restart("gateway")
        assert scene.supervisor.pids == before
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0


async def test_successor_takes_the_place_of_a_first_that_dies_meanwhile():
    late = POLITE.replace("print(f", "import time; time.sleep(0.5); print(f")
    scene = Scene({"gateway": late}, takes_over=True)
    async with scene.running():
        before = scene.supervisor.pids["gateway"]
        restarting = asyncio.create_task(scene.supervisor.restart("gateway"))
        await asyncio.sleep(0.2)
        os.kill(before, signal.SIGKILL)
        assert await restarting is None
        assert len([text for _, text in scene.lines if text.startswith("up")]) == 2
        assert any("its successor is starting already" in text for _, text in scene.said)
        os.kill(os.getpid(), signal.SIGTERM)


async def test_child_that_does_not_stop_is_killed_at_the_limit():
    scene = Scene({"gateway": POLITE, "worker-0": STUBBORN}, drain_limit_s=0.5)
    async with scene.running() as task:
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 1
    assert ("worker-0", "did not stop within the limit and was killed") in scene.said
    assert scene.supervisor.pids == {}


async def test_second_signal_ends_at_once_and_says_so_by_its_status():
    scene = Scene({"gateway": STUBBORN, "scheduler": STUBBORN}, drain_limit_s=60.0)
    started_at = time.monotonic()
    async with scene.running() as task:
        os.kill(os.getpid(), signal.SIGINT)
        await scene.until(lambda: ("gateway", "ending") in scene.lines)
        os.kill(os.getpid(), signal.SIGINT)
    assert task.result() == 1
    assert time.monotonic() - started_at < 30
    assert scene.supervisor.pids == {}


async def test_program_that_does_not_exist_is_a_refusal_to_start():
    scene = Scene({})
    missing = Program(name="redis", command=("/no/such/program",), environ=dict(os.environ))
    reports = Reports(
        line=lambda *_: None, say=lambda name, text: scene.said.append((name, text)), changed=lambda: None
    )
    services = [Service(program=missing, ready=scene.until_up)]
    assert await Supervisor(services, drain_limit_s=5.0, reports=reports).run(nothing_beside) == 1
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
        assert await scene.supervisor.run(nothing_beside) == 1
    assert ("worker-0", "  cannot go on") in scene.said


# A parent in a process of its own, so that it can be killed; prints the ids of its children.
PARENT = f"""
import asyncio, os, sys
from octavo.cli.child import Program
from octavo.cli.kept_service import Reports, Service
from octavo.cli.supervisor import Supervisor

async def say():
    print(*supervisor.pids.values(), flush=True)

async def ready(pid):
    pass

command = (sys.executable, "-c", {STUBBORN!r})
services = [
    Service(program=Program(name=str(i), command=command, environ=dict(os.environ)), ready=ready) for i in range(3)
]
reports = Reports(line=lambda *_: None, say=lambda *_: None, changed=lambda: None)
supervisor = Supervisor(services, drain_limit_s=5, reports=reports)
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
