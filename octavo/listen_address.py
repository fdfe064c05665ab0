"""The address a server listens on: "host:port" or "unix:/path", and the socket file behind the latter."""

import socket
import stat
from collections.abc import Sequence
from pathlib import Path


class CannotListen(SystemExit):
    """The address is not to be had. Uncaught it ends the process with status 1 and its message on stderr."""

    def __init__(self, address: str, problem: str, service_names: Sequence[str]) -> None:
        wanted_by = ", ".join(service_names)
        super().__init__(
            f"cannot listen on {address}: {problem}. {wanted_by} is expected there: "
            "stop what holds the address, or let it listen elsewhere"
        )


def is_unix(address: str) -> bool:
    return address.startswith("unix:")


def with_port(address: str, port: int) -> str:
    """The address with the port that was really bound."""
    return address if is_unix(address) else f"{address.rpartition(':')[0]}:{port}"


def claim(address: str, service_names: Sequence[str]) -> None:
    """Make a Unix socket's path free: gRPC itself would silently take it from a running server.

    Removes a socket file that nobody listens on; raises CannotListen for anything else that lies there.
    """
    path = _path(address)
    if path is None:
        return
    if not path.parent.is_dir():
        raise CannotListen(address, f"there is no directory {path.parent}", service_names)
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise CannotListen(address, "a file that is not a socket lies there", service_names)
    if _is_listening(path):
        raise CannotListen(address, "another process listens there", service_names)
    path.unlink()


def give_back(address: str) -> None:
    """Remove the socket file of a server that has stopped."""
    path = _path(address)
    if path is not None:
        path.unlink(missing_ok=True)


def _path(address: str) -> Path | None:
    return Path(address.removeprefix("unix:").removeprefix("//")) if is_unix(address) else None


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # it exists and does not refuse: somebody is there, only busy
            return True
    return True
