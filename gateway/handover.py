"""How a gateway takes both public ports over from the one before it, and leaves them to the one after it.

The older one serves whatever its open connections bring until their clients have turned to the newer one: over HTTP
an answer says that its connection ends, over gRPC the server asks every client to dial again now and then. It knows
neither requests nor who starts gateways.
"""

import asyncio

from gateway.http_server import HttpServer
from octavo import logs, port_sharing
from octavo.health import Readiness
from octavo.server import Running

CONNECTION_AGE_S = 15.0  # after which gRPC asks a client to dial again; a tenth more or less
# gRPC for Python can leave its clients in no other way: a server that is stopped cancels calls that are on their way.
GRPC_OPTIONS = (("grpc.so_reuseport", 1), ("grpc.max_connection_age_ms", int(CONNECTION_AGE_S * 1000)))
QUEUE_S = 1.0  # for connections that were on their way here when the successor drew them to itself
_log = logs.get(__name__)


async def before_listening(port: int, readiness: Readiness) -> None:
    """Who comes to a port that another listens on would only refuse what the other could serve: wait until ready."""
    if port_sharing.listeners(port):
        _log.info("waiting_to_take_over", port=port)
        await readiness.ready()


def take_over(running: Running, http: HttpServer) -> None:
    """New connections come here from now on."""
    for port in (running.port, http.port):
        assert port is not None, "a public port is a TCP port"
        port_sharing.draw_connections(port)


async def to_successor(running: Running, http: HttpServer) -> None:
    """Return when every client has turned to the process that shares the ports; at once if there is none."""
    assert running.port is not None, "a public port is a TCP port"
    if not port_sharing.is_shared(http.port):
        return
    _log.info("leaving_to_successor", http_port=http.port, grpc_port=running.port)
    await asyncio.sleep(QUEUE_S)
    port_sharing.stop_listening(running.port)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(http.leave())
        await asyncio.sleep(CONNECTION_AGE_S * 1.1)
        await running.calls.idle()
