"""One streamed HTTP request at a time, on raw asyncio streams: a client library would cost more than it measures.

Knows HTTP/1.1 framing (chunked or until the connection closes) and the lines of an event stream, not their meaning.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import SplitResult, urlsplit

MAX_LINE_BYTES = 1 << 22
CONNECT_TIMEOUT_S = 5.0


class HttpError(Exception):
    """The server answered with another status than 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:300]}")
        self.status = status


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The lines of the answer's body, as they come. Raises HttpError, OSError or EOFError."""
    parts = urlsplit(url)
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(
            parts.hostname, _port(parts), ssl=ssl.create_default_context() if parts.scheme == "https" else None,
            limit=MAX_LINE_BYTES,
        )  # fmt: skip
    try:
        writer.write(_head(parts, headers, len(body)) + body)
        status, is_chunked = await _read_head(reader)
        content = _chunks(reader) if is_chunked else _rest(reader)
        if status != 200:
            raise HttpError(status, b"".join([part async for part in content]).decode(errors="replace"))
        async for line in _lines(content):
            yield line
    finally:
        writer.close()


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _head(parts: SplitResult, headers: Mapping[str, str], num_bytes: int) -> bytes:
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Connection: close",
        f"Content-Length: {num_bytes}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the body is chunked."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    is_chunked = any(line.startswith("transfer-encoding:") and "chunked" in line for line in lines[1:])
    return int(lines[0].split()[1]), is_chunked


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part


async def _lines(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    pending = b""
    async for part in content:
        *lines, pending = (pending + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if pending:
        yield pending
