"""A proxy of bytes that strands connections: nothing comes through any more, and neither end is told.

So it is when a machine or a firewall between two processes forgets a connection. New connections are served.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 1 << 16


class StrandingProxy:
    """Forwards connections on one Unix socket to another."""

    def __init__(self, target: str) -> None:
        self.num_connections = 0  # so far
        self._target = target
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def strand(self) -> None:
        """Let nothing through any more on the connections that there are."""
        for pump in self._pumps:
            pump.cancel()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:  # nobody listens there
            writer.transport.abort()
            return
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    def close(self) -> None:
        self.strand()
        for writer in self._writers:
            writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
        sink.close()
    except ConnectionError:
        sink.close()


@asynccontextmanager
async def listening(path: str, target: str) -> AsyncIterator[StrandingProxy]:
    """A proxy on the Unix socket `path` before `target`."""
    proxy = StrandingProxy(target)
    server = await asyncio.start_unix_server(proxy.accept, path)
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
