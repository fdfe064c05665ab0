"""The control socket of a running `octavo serve`: orders in, what happens out. Knows the wire, not what orders do.

One connection is one order: a JSON line {"restart": ["gateway"]}, answered by JSON lines {"said": "..."} as things
happen and at the end by {"done": true} or {"refused": "why"}. Only the user who started the server can reach it.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

Restart = Callable[[Sequence[str]], AsyncGenerator[str, None]]


class Refused(Exception):
    """The order was not carried out to its end; the message is for the person who gave it."""


@asynccontextmanager
async def listening(path: Path, restart: Restart) -> AsyncIterator[None]:
    """Carry out orders while the block runs. An order whose giver has gone ends where it is."""
    running: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as orders:

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            order = orders.create_task(_answer(reader, writer, restart))
            running.add(order)
            order.add_done_callback(running.discard)

        server = await asyncio.start_unix_server(connected, path)
        try:
            yield
        finally:
            server.close()
            for order in running:
                order.cancel()


async def order_restart(path: Path, names: Sequence[str]) -> AsyncGenerator[str, None]:
    """What the server says while it restarts the services `names`, all if there are none. Raises Refused."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as gone:
        raise Refused(f"nobody takes orders at {path} ({gone.strerror}); octavo serve is just ending") from None
    try:
        writer.write(_line({"restart": list(names)}))
        while line := await reader.readline():
            answer = json.loads(line)
            if "refused" in answer:
                raise Refused(answer["refused"])
            if "done" in answer:
                return
            yield answer["said"]
        raise Refused("the server ended before it was done")
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, restart: Restart) -> None:
    """One order; what goes wrong with the connection ends it."""
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        answer: dict[str, Any] = {"done": True}
        try:
            await _carry_out(await _names(reader), reader, writer, restart=restart)
        except* Refused as refusals:
            answer = {"refused": "; ".join(map(str, refusals.exceptions))}
        writer.write(_line(answer))
        await writer.drain()


async def _carry_out(
    names: Sequence[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, restart: Restart
) -> None:
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(_tell(writer, restart(names)))
        leaving = tasks.create_task(_gone(reader))
        await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        telling.cancel()
        leaving.cancel()


async def _tell(writer: asyncio.StreamWriter, sentences: AsyncGenerator[str, None]) -> None:
    async with aclosing(sentences):
        async for sentence in sentences:
            writer.write(_line({"said": sentence}))


async def _gone(reader: asyncio.StreamReader) -> None:
    """Return when the giver of the order has gone, in whatever way."""
    with contextlib.suppress(ConnectionError):
        await reader.read()


async def _names(reader: asyncio.StreamReader) -> list[str]:
    try:
        match json.loads(await reader.readline()):
            case {"restart": [*names]} if all(isinstance(name, str) for name in names):
                return names
    except ValueError:  # no JSON, or a line without end
        pass
    raise Refused('not an order; one is a line {"restart": [SERVICE, ...]}')


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
