"""HTTP framing as servers really send it, from a socket that writes what it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from octavo.cli.bench import sse_connection


@asynccontextmanager
async def server_that_sends(*parts: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"
        await ended.wait()


async def lines(url: str) -> list[bytes]:
    return [line async for line in sse_connection.post(url, b"{}", {}) if line]


async def test_chunks_are_joined_where_a_line_is_cut():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with server_that_sends(head, b"5\r\ndata:\r\n", b"7\r\n one\n\nd\r\n", b"8\r\nata: two\r\n0\r\n\r\n") as url:
        assert await lines(url) == [b"data: one", b"data: two"]


async def test_body_without_chunks_ends_with_the_connection():
    async with server_that_sends(b"HTTP/1.0 200 OK\r\n\r\n", b"data: o", b"ne\r\n\r\n") as url:
        assert await lines(url) == [b"data: one"]


async def test_other_status_is_an_error_with_the_body():
    async with server_that_sends(b"HTTP/1.1 429 Too Many\r\nConnection: close\r\n\r\n", b"queue full") as url:
        with pytest.raises(sse_connection.HttpError, match="HTTP 429: queue full"):
            await lines(url)


async def test_connection_cut_in_a_chunk_is_noticed():
    async with server_that_sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10\r\nda") as url:
        with pytest.raises(EOFError):
            await lines(url)
