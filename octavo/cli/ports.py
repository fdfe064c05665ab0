"""Which TCP ports are free, and who holds the others. Knows Linux's /proc; no service."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"  # state column of /proc/net/tcp


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A TCP address that something is about to listen on, and the flag that moves it."""

    host: str
    port: int
    flag: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def problem(endpoint: Endpoint) -> str | None:
    """Why nothing can listen there, with who does and which flag to change; None if it can."""
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as refused:
        return f"{endpoint} is no address ({refused.strerror}); change it with {endpoint.flag}"
    family, _, _, _, address = addresses[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)  # bind alone succeeds beside a listener that allows sharing its address
        except OSError as refused:
            by = f" by {who}" if (who := holder(endpoint.port)) else ""
            return f"{endpoint} is taken{by} ({refused.strerror}); choose another with {endpoint.flag}"
    return None


def holder(port: int) -> str | None:
    """ "process 123 (python -m gateway)" for the process that listens on `port`; None if it cannot be seen."""
    inodes = _listening_inodes(port)
    for folder in Path("/proc").glob("[0-9]*"):
        if inodes & _socket_inodes(folder):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return f"process {folder.name} ({command[:80]})"
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(columns[9])
    return found


def _socket_inodes(process: Path) -> set[str]:
    """Inodes of a process's sockets; none if it is another user's or gone."""
    found = set()
    try:
        for descriptor in os.listdir(process / "fd"):
            target = os.readlink(process / "fd" / descriptor)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        return found
    return found
