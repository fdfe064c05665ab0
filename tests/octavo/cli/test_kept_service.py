"""One service of a supervisor, with real processes: started again when it dies, replaced when asked."""

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo.cli import restarts
from octavo.cli.kept_service import RestartFailed
from tests.octavo.cli.scene import POLITE, STUBBORN, UP_AND_FAILING, Scene, is_alive, nothing_beside


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """This process can open no file inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
    async with scene.running() as task:
        pid = scene.supervisor.pids["worker-0"]
        with no_more_descriptors():
            os.kill(pid, signal.SIGKILL)
            await scene.until(scene.is_refused_descriptors)
        await scene.until_replaced("worker-0", pid)
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0


async def test_restart_that_was_asked_for_is_tried_again_likewise():
    scene = Scene({"gateway": POLITE, "scheduler": POLITE})
    async with scene.running() as task:
        with no_more_descriptors():
            restarting = asyncio.create_task(scene.supervisor.restart("scheduler"))
            await scene.until(scene.is_refused_descriptors)
        assert await restarting is not None
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0


async def test_successor_that_cannot_be_started_leaves_the_first_in_place():
    scene = Scene({"gateway": POLITE}, takes_over=True)
    async with scene.running() as task:
        before = scene.supervisor.pids
        with no_more_descriptors(), pytest.raises(RestartFailed, match="no second gateway can be started"):
            await scene.supervisor.restart("gateway")
        assert scene.supervisor.pids == before
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
