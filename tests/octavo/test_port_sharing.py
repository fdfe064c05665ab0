"""Two processes on one port: who gets new connections, and that none is lost when the older one closes."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from octavo import port_sharing

# Listens on a port that may be shared, accepts nothing, and answers what it is asked with how many wait for it.
OLDER = """
import select, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", 0))
listener.listen(1000)
listener.setblocking(False)
print(listener.getsockname()[1], flush=True)
for _ in sys.stdin:
    num_accepted = 0
    while select.select([listener], [], [], 0)[0]:
        listener.accept()
        num_accepted += 1
    print(num_accepted, flush=True)
"""


class Older:
    """The process that listened first."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.port = self._number()

    def num_accepted(self) -> int:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self._number()

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@contextmanager
def older() -> Iterator[Older]:
    command = [sys.executable, "-c", OLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Older(process)
        finally:
            process.kill()


def listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1000)
    return listener


def connect(port: int, num: int) -> None:
    """Connections that the client closes again; they wait for the listener all the same."""
    for _ in range(num):
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_every_new_connection_comes_to_the_newer_one():
    with older() as first, listening(first.port):
        port_sharing.draw_connections(first.port)
        connect(first.port, 50)
        assert first.num_accepted() == 0


def test_without_being_drawn_connections_are_spread():
    with older() as first, listening(first.port):
        connect(first.port, 200)
        assert 0 < first.num_accepted() < 200


def test_third_draws_from_both_before_it_and_keeps_all_when_they_have_gone():
    with older() as first:
        second = listening(first.port)
        port_sharing.draw_connections(first.port)
        with listening(first.port) as third:
            port_sharing.draw_connections(first.port)
            connect(first.port, 50)
            assert first.num_accepted() == 0
            second.close()
            first.process.kill()
            first.process.wait()
            connect(first.port, 50)
            third.settimeout(5)
            for _ in range(100):
                third.accept()[0].close()


def test_port_is_shared_only_while_another_process_listens_at_the_same_address():
    with older() as first:
        assert not port_sharing.is_shared(first.port)
        with listening(first.port):
            assert port_sharing.is_shared(first.port)
            first.process.kill()
            first.process.wait()
            assert not port_sharing.is_shared(first.port)


def test_listeners_are_those_of_every_process():
    with older() as first:
        assert len(port_sharing.listeners(first.port)) == 1
        with listening(first.port):
            assert len(port_sharing.listeners(first.port)) == 2


def test_one_that_stops_listening_keeps_its_connections():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            server, _ = listener.accept()
            port_sharing.stop_listening(port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5)
            echo = threading.Thread(target=lambda: server.sendall(server.recv(4)))
            echo.start()
            client.sendall(b"ping")
            assert client.recv(4) == b"ping"
            echo.join()
            server.close()
