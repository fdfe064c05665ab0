"""Services of `octavo serve` are replaced under load: clients that never try again notice nothing but a wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import crowd
from tests.e2e.crowd import MAX_TOKENS, Crowd
from tests.e2e.stack import Stack
from tests.octavo.cli.scene import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 120
QUIET_S = 5


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as stack:
        yield stack


@contextmanager
def nobody_fails(stack: Stack) -> Iterator[None]:
    """While the block runs many ask all the time, and each gets what an undisturbed stack answers."""
    with crowd.kinds_of_clients(stack.http_port, stack.grpc_port, num_retries=0) as kinds:
        undisturbed = crowd.undisturbed_answers(kinds)
        clients = Crowd(kinds)
        clients.start()
        try:
            time.sleep(QUIET_S)
            yield
            ended_s = time.monotonic()
            time.sleep(QUIET_S)
        finally:
            clients.stop()
    assert not clients.failures
    assert clients.since(ended_s)
    assert all(answer.num_tokens == MAX_TOKENS for answer in clients.answers)
    assert all(answer.text == undisturbed[answer.prompt] for answer in clients.answers)
    print(f"longest wait of a client: {max(answer.longest_wait_s for answer in clients.answers):.1f} s")


def pids(stack: Stack) -> dict[str, int]:
    found = stack.state["pids"]
    assert isinstance(found, dict)
    return found


def test_sigterm_to_one_process_after_another_under_load(stack: Stack) -> None:
    """Whoever sends it; each is started again, and the next one is told when requests are served again."""
    with nobody_fails(stack):
        for name in ("worker-0", "scheduler", "kvcache"):
            before = pids(stack)[name]
            os.kill(before, signal.SIGTERM)
            until(lambda name=name, before=before: pids(stack).get(name, before) != before)  # type: ignore[misc]
            until(stack.is_ready)


def test_octavo_restart_under_load(stack: Stack) -> None:
    before = pids(stack)
    with nobody_fails(stack):
        command = [sys.executable, "-m", "octavo.cli", "restart"]
        done = subprocess.run(command, env=stack.environ, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
        told = [line.partition(":")[0] for line in done.stdout.splitlines()]
        assert told == ["worker-0", "scheduler", "kvcache", "gateway"]
        assert "gateway: a new one took over after" in done.stdout
        until(lambda: not is_alive(before["gateway"]))
    assert not set(pids(stack).values()) & {pid for name, pid in before.items() if name != "redis"}
    assert stack.state["num_restarts"] == {}


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
