"""What the proxy of bytes does to a connection is what the faults say."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos import tcp_proxy
from tests.chaos.ports import unused_port
from tests.chaos.tcp_proxy import HOST, TcpProxy
from tests.faults.proxy import Direction


@asynccontextmanager
async def echo(*, after_end: bytes = b"") -> AsyncIterator[tuple[TcpProxy, int]]:
    """A proxy before a server that sends back what it gets, and `after_end` when the client has ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.write(after_end)
        writer.close()

    target_port, port = unused_port(), unused_port()
    async with await asyncio.start_server(answer, HOST, target_port), tcp_proxy.listening(port, target_port) as proxy:
        yield proxy, port


async def test_bytes_pass_in_order_and_an_end_is_passed_on_while_the_other_direction_lives():
    sent = bytes(range(256)) * 4096
    async with echo(after_end=b"bye") as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent + b"bye"
        writer.close()


@pytest.mark.parametrize("direction", Direction)
async def test_held_bytes_come_once_they_are_let_go(direction: Direction):
    async with echo() as (proxy, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        proxy.hold(direction)
        writer.write(b"late")
        reading = asyncio.create_task(reader.read(4))
        await asyncio.wait({reading}, timeout=0.1)
        assert not reading.done()
        proxy.let_go(direction)
        assert await reading == b"late"
        writer.close()


async def test_a_held_connection_does_not_tell_that_its_other_end_has_gone():
    async with echo() as (proxy, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        proxy.hold(Direction.DOWN)
        writer.write_eof()
        ending = asyncio.create_task(reader.read())
        await asyncio.wait({ending}, timeout=0.1)
        assert not ending.done()
        proxy.let_go(Direction.DOWN)
        assert await ending == b""
        writer.close()


async def test_a_cut_resets_what_is_there_and_serves_what_comes():
    async with echo() as (proxy, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"here")
        await reader.readexactly(4)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()


async def test_delayed_bytes_are_late_by_that_much_however_many_there_are():
    async with echo() as (proxy, port):
        proxy.delay_s = 0.1
        reader, writer = await asyncio.open_connection(HOST, port)
        started_s = time.monotonic()
        for _ in range(10):
            writer.write(b"0123456789")
            await asyncio.sleep(0)
        await reader.readexactly(100)
        assert 0.2 <= time.monotonic() - started_s < 1.0
        writer.close()


async def test_nobody_behind_the_proxy_looks_like_a_reset():
    port = unused_port()
    async with tcp_proxy.listening(port, unused_port()):
        reader, writer = await asyncio.open_connection(HOST, port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
