"""Orders to a running server over its control socket, with both ends of it."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

import pytest

from octavo.cli import control
from octavo.cli.control import Refused


@pytest.fixture
def path() -> Iterator[Path]:
    """pytest's own folders have names too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="ct") as folder:
        yield Path(folder) / "control.sock"


async def obey(names: Sequence[str]) -> AsyncGenerator[str, None]:
    for name in names:
        if name == "nosuch":
            raise Refused("no service nosuch")
        yield f"{name} done"


async def said(path: Path, names: Sequence[str]) -> list[str]:
    return [sentence async for sentence in control.order_restart(path, names)]


async def test_what_happens_is_told_one_by_one_until_the_order_is_done(path: Path):
    async with control.listening(path, obey):
        assert await said(path, ["gateway", "scheduler"]) == ["gateway done", "scheduler done"]
        assert await said(path, []) == []


async def test_refusal_reaches_the_giver_of_the_order(path: Path):
    async with control.listening(path, obey):
        with pytest.raises(Refused, match=r"^no service nosuch$"):
            await said(path, ["gateway", "nosuch"])
        assert await said(path, ["gateway"]) == ["gateway done"]


async def test_order_ends_where_it_is_when_its_giver_has_gone(path: Path):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def restart(names: Sequence[str]) -> AsyncGenerator[str, None]:
        yield "begun"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(10), control.listening(path, restart):
        giver = asyncio.create_task(said(path, []))
        await begun.wait()
        giver.cancel()
        await ended.wait()


async def test_giver_who_leaves_without_listening_ends_the_order_and_nothing_else(path: Path):
    said_first = asyncio.Event()

    async def restart(names: Sequence[str]) -> AsyncGenerator[str, None]:
        if names:
            yield "never read"
            said_first.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(10), control.listening(path, restart):
        with socket.socket(socket.AF_UNIX) as giver:
            giver.connect(str(path))
            giver.sendall(b'{"restart": ["gateway"]}\n')
            await said_first.wait()
        assert await said(path, []) == []


async def test_server_that_stops_does_not_wait_for_orders(path: Path):
    async def restart(names: Sequence[str]) -> AsyncGenerator[str, None]:
        yield "begun"
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        async with control.listening(path, restart):
            sentences = control.order_restart(path, [])
            assert await anext(sentences) == "begun"
        with pytest.raises(Refused, match="the server ended before it was done"):
            await anext(sentences)


async def test_nonsense_is_refused_and_the_server_goes_on(path: Path):
    async with control.listening(path, obey):
        for nonsense in (b"\n", b"hello\n", b'{"restart": [1]}\n', b"[]\n", b"x" * (1 << 20) + b"\n"):
            with socket.socket(socket.AF_UNIX) as giver:
                giver.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(giver, str(path))
                with contextlib.suppress(ConnectionError):  # closed before all of it was written
                    await asyncio.wait_for(loop.sock_sendall(giver, nonsense), 10)
        assert await said(path, ["gateway"]) == ["gateway done"]


async def test_server_that_is_not_there_is_said_not_to_be(path: Path):
    with pytest.raises(Refused, match="nobody takes orders at"):
        await said(path, [])
