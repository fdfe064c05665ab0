"""What `octavo status` says where no gateway answers."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli import runtime, status
from octavo.cli.runtime import ServeState

URL = "http://127.0.0.1:9"  # the discard port; nobody listens there


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No `octavo serve` but the test's own; pytest's own folders have names too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="st") as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(path)


def running_serve() -> ServeState:
    return ServeState(
        pid=os.getpid(), http_url=URL, grpc_addr="127.0.0.1:2", scheduler_addr="unix:/s", kvcache_addr="unix:/k",
        control_socket="/c", pids={"gateway": 7, "worker-0": 8}, num_restarts={"gateway": 2},
    )  # fmt: skip


def test_without_a_server_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]):
    assert status.run(["--url", URL]) == 1
    assert "start one with `octavo serve`" in capsys.readouterr().err


def test_while_the_gateway_is_started_again_the_processes_are_shown_all_the_same(capsys: pytest.CaptureFixture[str]):
    with runtime.folder(os.environ) as folder:
        runtime.write_state(folder, running_serve())
        assert status.run([]) == 1
    shown = capsys.readouterr()
    assert "its processes: gateway 7, worker-0 8\n" in shown.out
    assert "times started again after an unexpected end: gateway 2\n" in shown.out
    assert f"octavo serve {os.getpid()} runs, and may just be starting it" in shown.err
    assert "start one with" not in shown.err
