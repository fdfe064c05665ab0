"""Which TCP ports are free, and who holds the others. Knows Linux's /proc; no service."""

import socket
from dataclasses import dataclass
from pathlib import Path

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
    return any(listener.inode in own for listener in port_sharing.listeners(port))
