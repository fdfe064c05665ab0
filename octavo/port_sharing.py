"""One TCP port, two processes of one program: how the newer takes over without a refused connection. Linux only.

Both listen with SO_REUSEPORT. By itself the kernel spreads new connections over the two, and resets those that wait for
a listener that closes. So the newer one first draws all new connections to itself; the older one then has none to lose.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo import logs

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"  # state column of the tables
_SO_ATTACH_REUSEPORT_CBPF = 51  # socket(7)
_BPF_RETURN = 0x06  # BPF_RET | BPF_K: the program's result is its constant
_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket of this machine (or container) that listens."""

    address: str  # as the kernel prints it: address and port in hexadecimal digits
    inode: str


def listeners(port: int) -> list[Listener]:
    """Whoever listens on `port`; empty where there is no /proc."""
    found = []
    for table in filter(Path.exists, _TABLES):
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            address, state, inode = columns[1], columns[3], columns[9]
            if state == _LISTENING and int(address.rpartition(":")[2], 16) == port:
                found.append(Listener(address, inode))
    return found


def socket_inodes(process: Path) -> dict[str, int]:
    """Inode -> descriptor of a process's sockets (/proc/PID); none if it is another user's or gone."""
    found = {}
    try:
        for descriptor in os.listdir(process / "fd"):
            target = os.readlink(process / "fd" / descriptor)
            if target.startswith("socket:["):
                found[target[len("socket:[") : -1]] = int(descriptor)
    except OSError:
        return found
    return found


def is_shared(port: int) -> bool:
    """Whether another process listens where this one does."""
    own = socket_inodes(Path("/proc/self"))
    addresses = {listener.address for listener in listeners(port) if listener.inode in own}
    return any(other.address in addresses and other.inode not in own for other in listeners(port))


def draw_connections(port: int) -> None:
    """From now on every new connection comes to this process, as the last that began to listen on `port`.

    When the others have closed, the kernel's own choice takes over again: there is one socket left to choose.
    """
    everybody = listeners(port)
    for own, shared in _own_sockets(port):
        index = sum(other.address == own.address for other in everybody) - 1
        program = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, index))
        try:
            shared.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, struct.pack("HL", 1, ctypes.addressof(program))
            )
        except OSError as refused:
            _log.warning("connections_not_drawn", port=port, problem=str(refused))


def stop_listening(port: int) -> None:
    """Close what this process listens with on `port`, for a server that cannot do so without ending calls."""
    for _, shared in _own_sockets(port):
        shared.shutdown(socket.SHUT_RDWR)


def _own_sockets(port: int) -> Iterator[tuple[Listener, socket.socket]]:
    """This process's listeners on `port`, each with a socket that is another name for it."""
    own = socket_inodes(Path("/proc/self"))
    for listener in listeners(port):
        if listener.inode in own:
            with socket.socket(fileno=os.dup(own[listener.inode])) as shared:
                yield listener, shared
