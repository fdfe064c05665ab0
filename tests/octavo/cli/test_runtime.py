"""The private folder of a server, and what other commands learn from it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli import runtime
from octavo.cli.runtime import ServeState


@pytest.fixture
def place() -> Iterator[Path]:
    """pytest's own folders have names too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="rt") as path:
        yield Path(path)


def state(pid: int) -> ServeState:
    return ServeState(
        pid=pid, http_url="http://127.0.0.1:1", grpc_addr="127.0.0.1:2", scheduler_addr="unix:/s",
        kvcache_addr="unix:/k", control_socket="/c", pids={"gateway": 7},
    )  # fmt: skip


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_folder_is_private_and_goes_with_its_block(place: Path):
    with runtime.folder({"XDG_RUNTIME_DIR": str(place)}) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_running_server_is_found_while_its_block_lasts(place: Path):
    environ = {"XDG_RUNTIME_DIR": str(place)}
    with runtime.folder(environ) as folder:
        assert runtime.running(environ) == []
        runtime.write_state(folder, state(os.getpid()))
        assert runtime.running(environ) == [state(os.getpid())]
    assert runtime.running(environ) == []


def test_dead_server_is_not_listed_and_its_folder_is_swept_by_the_next(place: Path):
    environ = {"XDG_RUNTIME_DIR": str(place)}
    pid = dead_pid()
    left = place / "octavo" / f"serve-{pid}-abc"
    left.mkdir(mode=0o700, parents=True)
    left.parent.chmod(0o700)
    runtime.write_state(left, state(pid))
    assert runtime.running(environ) == []
    with runtime.folder(environ):
        assert not left.exists()


def test_looking_for_servers_creates_nothing(place: Path):
    assert runtime.running({"XDG_RUNTIME_DIR": str(place)}) == []
    assert list(place.iterdir()) == []


def test_folder_that_others_may_enter_is_refused(place: Path):
    (place / "octavo").mkdir()
    (place / "octavo").chmod(0o777)
    with pytest.raises(SystemExit, match="only you can enter"), runtime.folder({"XDG_RUNTIME_DIR": str(place)}):
        pass


def test_path_too_long_for_a_socket_is_not_used(place: Path):
    with runtime.folder({"XDG_RUNTIME_DIR": str(place / ("x" * 90))}) as folder:
        assert folder.parent == Path(f"/tmp/octavo-{os.getuid()}")
