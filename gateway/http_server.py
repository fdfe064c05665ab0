"""Runs an ASGI application with uvicorn beside the gRPC server, in the same event loop.

Knows uvicorn; its own signal handlers are left out, because the process drains both servers together.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from octavo import logs
from octavo.listen_address import CannotListen

BACKLOG = 2048
LEAVE_S = 2  # for the last bytes of drained requests to reach their clients

_log = logs.get(__name__)


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    port = 0  # as bound

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def started(app: ASGIApp, host: str, port: int) -> AsyncIterator[HttpServer]:
    """Serve `app` while the block runs. Raises CannotListen. Drain before you leave the block."""
    listener = _listener(host, port)
    config = uvicorn.Config(
        cast(Any, app),  # starlette and uvicorn spell the type of an application differently
        lifespan="off",
        log_config=None,
        access_log=False,  # one line per finished request is written by the generator
        server_header=False,
        backlog=BACKLOG,
        log_level="warning",
        timeout_graceful_shutdown=LEAVE_S,
    )
    server = HttpServer(config)
    server.port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.serve(sockets=[listener]), name="http-server")
        _log.info("http_listening", address=f"{host}:{server.port}")
        try:
            yield server
        finally:
            server.should_exit = True
            await running


def _listener(host: str, port: int) -> socket.socket:
    """Bound here, so that an error is ours to tell, and port 0 can be asked for."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as unknown:
        raise CannotListen(f"{host}:{port}", unknown.strerror or str(unknown), ["http"]) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as taken:
        listener.close()
        raise CannotListen(f"{host}:{port}", taken.strerror or str(taken), ["http"]) from None
    return listener
