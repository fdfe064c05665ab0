"""A server from its start to its end."""

import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from benchmarks.compare import running
from benchmarks.compare.running import DidNotStart
from benchmarks.compare.servers import Server

COMMAND = (sys.executable, "-m", "tests.benchmarks.compare.counting_engine")


def states(awake: running.Running) -> set[str]:
    return {process.status() for process in awake.processes()}


async def test_server_has_answered_when_it_is_started_and_is_gone_afterwards(tmp_path: Path):
    async with running.started(Server(name="peer", command=COMMAND, port=None), tmp_path / "peer.log") as awake:
        sample = await awake.target.generate([5], 3)
        assert sample.num_output_tokens == 3
        assert awake.start_s > 0
        assert 1 < awake.memory().pss <= awake.memory().rss
    assert not psutil.pid_exists(awake.pid)


async def test_sleeping_server_stands_still_until_it_is_woken(tmp_path: Path):
    async with running.started(Server(name="peer", command=COMMAND, port=None), tmp_path / "peer.log") as awake:
        awake.sleep()
        assert states(awake) == {psutil.STATUS_STOPPED}
        awake.wake()
        assert (await awake.target.generate([5], 1)).num_output_tokens == 1


async def test_server_that_sleeps_can_be_ended(tmp_path: Path):
    async with running.started(Server(name="peer", command=COMMAND, port=None), tmp_path / "peer.log") as awake:
        awake.sleep()
    assert not psutil.pid_exists(awake.pid)


@pytest.mark.parametrize("port", [None, 1])
async def test_server_that_ends_before_its_first_token_did_not_start(tmp_path: Path, port: int | None):
    command = (sys.executable, "-c", "raise SystemExit('no such model')")
    with pytest.raises(ExceptionGroup) as failed:
        async with running.started(Server(name="peer", command=command, port=port), tmp_path / "peer.log"):
            pass
    assert failed.group_contains(DidNotStart, match="no such model")
