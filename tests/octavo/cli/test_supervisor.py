"""Supervision of real child processes: order of draining, refusals, limits, and that none survives."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from octavo.cli.child import Program
from octavo.cli.kept_service import Reports, Service
from octavo.cli.supervisor import Supervisor
from tests.octavo.cli.scene import FAILING, POLITE, STUBBORN, Scene, is_alive, nothing_beside


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
