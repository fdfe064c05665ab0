"""The HTTP server leaves its port to another: nobody who is connected is refused, and everybody goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway import http_server
from gateway.config import Limits
from gateway.http_connections import Connections
from gateway.http_server import HttpServer
from octavo import port_sharing

LIMIT_S = 10


class Named:
    """An application that answers its name, in two parts: the second when told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode(), "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"."})


@asynccontextmanager
async def serving(app: Named, port: int = 0, *, reuse_port: bool = True) -> AsyncIterator[HttpServer]:
    connections = Connections(Limits().of_connections)
    async with http_server.started(app, "127.0.0.1", port, connections=connections, reuse_port=reuse_port) as server:
        async with asyncio.timeout(LIMIT_S):
            while not server.started:  # noqa: ASYNC110 - uvicorn gives no event
                await asyncio.sleep(0.01)
        yield server


def url(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}/"


async def test_open_connection_is_answered_once_more_and_new_ones_reach_the_successor():
    async with serving(Named("old")) as old, httpx.AsyncClient() as client:
        assert (await client.get(url(old))).text == "old."
        async with serving(Named("new"), old.port):
            port_sharing.draw_connections(old.port)
            leaving = asyncio.create_task(old.leave())
            last = await client.get(url(old))
            assert (last.text, last.headers["connection"]) == ("old.", "close")
            async with asyncio.timeout(LIMIT_S):
                await leaving
            assert (await client.get(url(old))).text == "new."


async def test_answer_that_has_begun_is_finished_and_its_connection_may_ask_once_more():
    app = Named("old")
    app.may_end.clear()
    async with serving(app) as old, httpx.AsyncClient() as client, client.stream("GET", url(old)) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b"old"
        leaving = asyncio.create_task(old.leave())
        app.may_end.set()
        assert b"".join([part async for part in parts]) == b"."
        assert not leaving.done()
        assert (await client.get(url(old))).headers["connection"] == "close"
        async with asyncio.timeout(LIMIT_S):
            await leaving


async def test_connection_on_which_nothing_is_asked_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LEAVE_IDLE_S", 0.3)
    async with serving(Named("old")) as old:
        reader, writer = await asyncio.open_connection("127.0.0.1", old.port)
        async with asyncio.timeout(LIMIT_S):
            await old.leave()
            assert await reader.read() == b""
        writer.close()


async def test_server_that_is_leaving_takes_no_new_connection():
    async with serving(Named("old")) as old:
        await old.leave()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", old.port)


async def test_port_is_not_shared_unless_both_want_it():
    async with serving(Named("old"), reuse_port=False) as old:
        with pytest.raises(SystemExit, match="cannot listen on"):
            async with serving(Named("new"), old.port):
                pass
