"""Whether a port can be had, and who has it."""

import os
import socket

from octavo.cli import ports
from octavo.cli.ports import Endpoint


def test_free_port_is_no_problem():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ports.problem(Endpoint(host="127.0.0.1", port=port, flag="--port")) is None


def test_taken_port_names_address_holder_and_flag():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        problem = ports.problem(Endpoint(host="127.0.0.1", port=port, flag="--grpc-port"))
    assert problem is not None
    assert f"127.0.0.1:{port} is taken by process {os.getpid()} (" in problem
    assert "choose another with --grpc-port" in problem


def test_port_shared_by_its_holder_is_taken_too():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        problem = ports.problem(Endpoint(host="127.0.0.1", port=server.getsockname()[1], flag="--port"))
    assert problem is not None


def test_port_that_is_held_is_taken_for_all_but_those_who_share_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.getsockname()[1], flag="--port")
    with ports.held([endpoint]):
        assert ports.problem(endpoint) is not None
        address = (endpoint.host, endpoint.port)
        with socket.create_server(address, reuse_port=True) as server, socket.create_connection(address):
            server.accept()[0].close()
    assert ports.problem(endpoint) is None


def test_host_that_is_none_is_said_to_be_none():
    problem = ports.problem(Endpoint(host="256.1.1.1", port=80, flag="--host"))
    assert problem is not None
    assert "256.1.1.1:80 is no address" in problem


def test_nobody_holds_a_free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ports.holder(port) is None


def test_process_listens_on_what_it_listens_on():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.listens(os.getpid(), port)
        assert not ports.listens(os.getppid(), port)
    assert not ports.listens(os.getpid(), port)
