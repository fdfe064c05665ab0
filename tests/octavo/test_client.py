"""Reaching a peer: how long a try may take, and how long to wait between two."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from octavo import client, server
from tests.octavo.echo_service import NAME, STATUSES, Channel, EchoService


@asynccontextmanager
async def slow_to_answer(path: Path, target: Path, delay_s: float) -> AsyncIterator[str]:
    """Relays to `target`, but lets every connection wait first."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)
        its_reader, its_writer = await asyncio.open_unix_connection(target)
        await asyncio.gather(_pump(reader, its_writer), _pump(its_reader, writer))

    async with (
        asyncio.TaskGroup() as relays,
        await asyncio.start_unix_server(lambda *ends: _begin(relays, relay(*ends)), path),
    ):
        yield f"unix:{path}"


def _begin(tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
    tasks.create_task(work)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def dial(address: str) -> Channel:
    return client.channel(address)


def test_pauses_grow_and_the_last_one_repeats():
    assert [client.retry_pause_s(num_tries) for num_tries in (0, 1, 2, 3, 1000)] == [0.1, 0.2, 0.5, 0.5, 0.5]


async def test_a_peer_too_busy_to_answer_at_once_is_no_missing_peer(tmp_path: Path):
    async with (
        server.started(f"unix:{tmp_path}/s", EchoService().register, STATUSES, service_names=[NAME]),
        slow_to_answer(tmp_path / "slow", tmp_path / "s", delay_s=0.4) as address,
        dial(address) as channel,
    ):
        assert await channel.unary_unary(f"/{NAME}/Echo")(b"x") == b"x"
