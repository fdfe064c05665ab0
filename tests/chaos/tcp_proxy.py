"""A TCP proxy between two processes that can hold bytes back, deliver them late, and reset connections.

It knows nothing of what the bytes mean. A direction that is held looks like a peer that is alive and silent.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tests.faults.proxy import Direction, together

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
NUM_CHUNKS_UNDER_WAY = 64  # of one direction of one connection; then the sender's writes wait, as in a full network
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, no time


class _Chunk(NamedTuple):
    due_s: float
    data: bytes | None  # empty: the end; None: the connection was reset


@dataclass(frozen=True, slots=True)
class _Ends:
    """The two sockets of one connection."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter

    def reset(self) -> None:
        for writer in (self.near, self.far):
            _reset(writer)

    def close(self) -> None:
        self.near.close()
        self.far.close()


class TcpProxy:
    """Forwards every connection to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0  # what every byte is late
        self._target_port = target_port
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for event in self._flows.values():
            event.set()
        self._connections: set[_Ends] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def hold(self, direction: Direction) -> None:
        """Let no byte through, nor the end of a connection, until `let_go`."""
        self._flows[direction].clear()

    def let_go(self, direction: Direction) -> None:
        self._flows[direction].set()

    def cut(self) -> None:
        """Reset every connection that there is; new ones are served."""
        for ends in tuple(self._connections):
            ends.reset()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._flows[Direction.UP].wait()  # the target does not hear of it before
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            _reset(writer)
            return
        ends = _Ends(writer, far_writer)
        self._connections.add(ends)
        try:
            await together(self._pump(reader, far_writer, Direction.UP), self._pump(far_reader, writer, Direction.DOWN))
        except OSError:  # a broken connection, or one that turns out to be when it is to end
            ends.reset()
        finally:
            self._connections.discard(ends)
            ends.close()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        """One direction to its end, which is passed on like its bytes; raises ConnectionError for a broken socket."""
        under_way: asyncio.Queue[_Chunk] = asyncio.Queue(NUM_CHUNKS_UNDER_WAY)
        await together(self._take(reader, under_way), self._deliver(under_way, writer, direction))

    async def _take(self, reader: asyncio.StreamReader, under_way: "asyncio.Queue[_Chunk]") -> None:
        now_s = asyncio.get_running_loop().time
        data: bytes | None = b"..."
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except ConnectionError:
                data = None
            await under_way.put(_Chunk(now_s() + self.delay_s, data))

    async def _deliver(
        self, under_way: "asyncio.Queue[_Chunk]", writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await under_way.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await self._flows[direction].wait()
            if data is None:
                raise ConnectionResetError
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if not writer.is_closing():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its other end sees a reset, as when a host goes down."""
    endpoint = writer.get_extra_info("socket")
    if endpoint is not None and endpoint.fileno() >= 0:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


@asynccontextmanager
async def listening(port: int, target_port: int) -> AsyncIterator[TcpProxy]:
    """A proxy on `port` before `target_port`."""
    proxy = TcpProxy(target_port)
    server = await asyncio.start_server(proxy.accept, HOST, port)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
