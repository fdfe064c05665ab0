"""How the tests reach the HTTP surface: in process through ASGI, or through a real uvicorn on a free port."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway import http_server
from gateway.config import GatewayConfig
from gateway.http_connections import Connections
from gateway.openai.app import create_app
from tests.fakes.generator import FakeGenerator

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def client(fake: FakeGenerator, settings: GatewayConfig | None = None) -> httpx.AsyncClient:
    """A client of the application itself; responses come whole."""
    app = create_app(fake, settings or GatewayConfig())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def post(fake: FakeGenerator, path: str, body: Any, settings: GatewayConfig | None = None) -> httpx.Response:
    """One POST; `body` is sent as JSON, or as it is when it is bytes."""
    async with client(fake, settings) as http:
        return await http.post(path, **({"content": body} if isinstance(body, bytes) else {"json": body}))


def events(text: str) -> list[Any]:
    """The data of every server-sent event; the last must be [DONE]."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]", text
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@asynccontextmanager
async def uvicorn_serving(fake: FakeGenerator, settings: GatewayConfig | None = None) -> AsyncIterator[str]:
    """The base URL of a real HTTP server."""
    settings = settings or GatewayConfig()
    connections = Connections(settings.limits.of_connections)
    async with http_server.started(create_app(fake, settings), "127.0.0.1", 0, connections=connections) as server:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.port}"


async def until(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    """Wait for something that the server does by itself."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is under test has no event for it
            await asyncio.sleep(0.005)
