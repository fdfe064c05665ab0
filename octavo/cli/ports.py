"""Which TCP ports are free, and who holds the others. Knows Linux's /proc; no service."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import port_sharing


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
        made, address = _socket(endpoint)
    except OSError as refused:
        return f"{endpoint} is no address ({refused.strerror}); change it with {endpoint.flag}"
    with made as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)  # bind alone succeeds beside a listener that allows sharing its address
        except OSError as refused:
            by = f" by {who}" if (who := holder(endpoint.port)) else ""
            return f"{endpoint} is taken{by} ({refused.strerror}); choose another with {endpoint.flag}"
    return None


@contextmanager
def held(endpoints: Sequence[Endpoint]) -> Iterator[None]:
    """While the block runs nobody else finds these free, though nobody may listen yet.

    Processes of this user that share their address can listen there; what is held takes no connection from them.
    """
    with ExitStack() as exits:
        for endpoint in endpoints:
            made, address = _socket(endpoint)
            holding = exits.enter_context(made)
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holding.bind(address)
        yield


def holder(port: int) -> str | None:
    """ "process 123 (python -m gateway)" for the process that listens on `port`; None if it cannot be seen."""
    inodes = {listener.inode for listener in port_sharing.listeners(port)}
    for folder in Path("/proc").glob("[0-9]*"):
        if inodes & port_sharing.socket_inodes(folder).keys():
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return f"process {folder.name} ({command[:80]})"
    return None


def listens(pid: int, port: int) -> bool:
    """Whether that process listens on `port`, so far as this machine tells: where there is no /proc, yes."""
    if not Path("/proc/self/fd").exists():
        return True
    own = port_sharing.socket_inodes(Path(f"/proc/{pid}"))
    # While it is starting it has no socket at all: then the machine's long table of them need not be read.
    return bool(own) and any(listener.inode in own for listener in port_sharing.listeners(port))


def _socket(endpoint: Endpoint) -> tuple[socket.socket, Any]:
    """A socket for it, and its address."""
    addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, address = addresses[0]
    return socket.socket(family, kind), address
