"""Prometheus metrics of one process and the small HTTP server that shows them.

Knows the exposition formats; every service defines its own metrics on `REGISTRY` or on a registry of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from octavo import logs

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

READ_TIMEOUT_S = 5.0  # a scraper that has not sent its request by then is cut off

_log = logs.get(__name__)


def render(accept_header: str = "", registry: CollectorRegistry = REGISTRY) -> tuple[bytes, str]:
    """The metrics as (body, content type); OpenMetrics, which carries exemplars, if the scraper accepts it."""
    encode, content_type = choose_encoder(accept_header)
    return encode(registry), content_type


@asynccontextmanager
async def serve(address: str | int, registry: CollectorRegistry = REGISTRY) -> AsyncIterator[int]:
    """Serve GET /metrics at "host:port" or at a port of all interfaces while the block runs; yields the port.

    Collects in the event loop, so that a collector may read the service's state without a lock.
    """
    host, _, port = str(address).rpartition(":")
    try:
        listener = await asyncio.start_server(_Responder(registry).respond, host.strip("[]") or None, int(port))
    except OSError as refused:
        raise SystemExit(f"cannot serve metrics at {address}: {refused.strerror}; is another service there?") from None
    async with listener:
        bound = listener.sockets[0].getsockname()[1]
        _log.info("metrics_listening", address=f"{host or '*'}:{bound}")
        yield bound


class _Responder:
    """Answers one request per connection."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.decode("latin-1").split("\r\n")))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the scraper left or never asked; there is nobody to tell
        finally:
            writer.close()

    def _answer(self, lines: list[str]) -> bytes:
        method, _, target = lines[0].partition(" ")
        if method not in ("GET", "HEAD") or target.split(" ")[0].split("?")[0] != "/metrics":
            return _response("404 Not Found", b"only GET /metrics is here\n", "text/plain")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body, content_type = render(headers.get("accept", ""), self._registry)
        return _response("200 OK", b"" if method == "HEAD" else body, content_type)


def _response(status: str, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
