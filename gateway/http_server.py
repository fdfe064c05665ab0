"""Runs an ASGI application with uvicorn beside the gRPC server, in the same event loop.

Knows uvicorn; its own signal handlers are left out, because the process drains both servers together.
"""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http_connection import HttpConnection
from gateway.http_connections import Connections
from octavo import logs
from octavo.listen_address import CannotListen

BACKLOG = 2048
SPARE_FILES = 1024  # for everything that is not a connection of a client
LEAVE_IDLE_S = 10.0  # without a request, before a connection of a server that leaves its port is closed
LOOK_EVERY_S = 0.1
LEAVE_S = 2  # for the last bytes of drained requests to reach their clients

_log = logs.get(__name__)


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process, and can leave its port to another."""

    port = 0  # as bound

    def __init__(self, config: uvicorn.Config, leaver: "_Leaver") -> None:
        super().__init__(config)
        self._leaver = leaver

    async def leave(self) -> None:
        """Accept no more connections and answer what comes on the open ones as their last; return when all are closed.

        One that is silent for as long as clients keep idle connections is closed, too.
        """
        self._leaver.is_leaving = True
        for listener in self.servers:
            listener.close()
        while self.server_state.connections:
            await asyncio.sleep(LOOK_EVERY_S)
            for connection in tuple(self.server_state.connections):
                assert isinstance(connection, HttpConnection), f"not a connection of ours: {connection}"
                connection.close_if_idle(LEAVE_IDLE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Leaver:
    """The application, whose answers end their connections once it is leaving."""

    def __init__(self, app: ASGIApp) -> None:
        self.is_leaving = False
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_last if self.is_leaving else send)


@asynccontextmanager
async def started(
    app: ASGIApp, host: str, port: int, *, connections: Connections, reuse_port: bool = False
) -> AsyncIterator[HttpServer]:
    """Serve `app` while the block runs. Raises CannotListen. Drain before you leave the block.

    With `reuse_port` another process may listen there as well, if it wants that too.
    """
    _allow_files(connections.limits.max_connections)
    listener = _listener(host, port, reuse_port=reuse_port)
    leaver = _Leaver(app)
    config = uvicorn.Config(
        cast(Any, leaver),  # starlette and uvicorn spell the type of an application differently
        lifespan="off",
        log_config=None,
        http=cast(Any, partial(HttpConnection, connections=connections)),
        ws="none",
        access_log=False,  # one line per finished request is written by the generator
        server_header=False,
        backlog=BACKLOG,
        log_level="warning",
        timeout_graceful_shutdown=LEAVE_S,
    )
    server = HttpServer(config, leaver)
    server.port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.serve(sockets=[listener]), name="http-server")
        _log.info("http_listening", address=f"{host}:{server.port}")
        try:
            yield server
        finally:
            server.should_exit = True
            await running


def _allow_files(num_connections: int) -> None:
    """Raise the soft limit of open files as far as they are needed; many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * num_connections + SPARE_FILES  # as many for gRPC
    if soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            _log.warning(
                "few_files", allowed=allowed, needed=needed, advice="raise ulimit -n, or lower max_connections"
            )


def _listener(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Bound here, so that an error is ours to tell, and port 0 can be asked for."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as unknown:
        raise CannotListen(f"{host}:{port}", unknown.strerror or str(unknown), ["http"]) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
    try:
        listener.bind(address)
    except OSError as taken:
        listener.close()
        raise CannotListen(f"{host}:{port}", taken.strerror or str(taken), ["http"]) from None
    return listener
