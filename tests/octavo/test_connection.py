"""A connection that is half open is left behind."""

import asyncio

import grpc
import pytest

from octavo import connection, server
from octavo.connection import Connection
from octavo.health import Readiness
from octavo.server import started


async def check(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary(
        "/grpc.health.v1.Health/Check", request_serializer=None, response_deserializer=None
    )(b"", timeout=5)
    return answer


async def test_it_is_replaced_once_by_many_who_complain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SHORTEST_LIFE_S", 0.05)
    async with asyncio.TaskGroup() as tasks:
        made = Connection("127.0.0.1:1", longest_call_s=0.1, tasks=tasks)
        first = made.channel
        made.renew()
        assert made.channel is first  # it is new itself
        await asyncio.sleep(0.1)
        made.renew()
        second = made.channel
        made.renew()
        assert first is not second is made.channel
        await made.close()


async def test_calls_under_way_on_the_old_one_still_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SHORTEST_LIFE_S", 0.0)
    readiness = Readiness()
    async with (
        started("127.0.0.1:0", lambda _: None, {}, service_names=[], readiness=readiness) as running,
        asyncio.TaskGroup() as tasks,
    ):
        assert isinstance(running, server.Running)
        made = Connection(running.address, longest_call_s=5, tasks=tasks)
        watch = made.channel.unary_stream(
            "/grpc.health.v1.Health/Watch", request_serializer=None, response_deserializer=None
        )(b"")
        await watch.read()
        made.renew()
        await check(made.channel)
        readiness.set(True)
        assert await asyncio.wait_for(watch.read(), 5)
        watch.cancel()
        await made.close()
