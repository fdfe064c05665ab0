"""Clients that are slow, silent, greedy or hostile, over raw sockets: each is bounded, its neighbours are not hurt."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway import http_server
from gateway.config import GatewayConfig
from gateway.http_connections import ConnectionLimits, Connections
from gateway.openai.app import create_app
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import until

BODY = b'{"messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(slots=True)
class Server:
    """The HTTP half of a gateway."""

    port: int
    connections: Connections
    clients: "list[Client]" = field(default_factory=list)

    async def connect(self, sent: bytes = b"") -> "Client":
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        await client.send(sent)
        return client


@dataclass(slots=True)
class Client:
    """A raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def end(self) -> bytes:
        """All that the server says until it closes; fails if it does not."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def response(self) -> bytes:
        """The next whole response."""
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head + await self.reader.readexactly(length)


@asynccontextmanager
async def serving(
    fake: FakeGenerator | None = None,
    *,
    idle_s: float = 30,
    slow_request_s: float = 30,
    stalled_s: float = 30,
    max_connections: int = 100,
    max_body_bytes: int = 2**24,
    min_bytes_per_s: float = 16_384,
) -> AsyncIterator[Server]:
    limits = ConnectionLimits(
        max_connections=max_connections, max_body_bytes=max_body_bytes, slow_request_s=slow_request_s,
        stalled_s=stalled_s, idle_s=idle_s, min_bytes_per_s=min_bytes_per_s, linger_s=0.2,
    )  # fmt: skip
    connections = Connections(limits)
    app = create_app(fake or FakeGenerator(), GatewayConfig())
    async with http_server.started(app, "127.0.0.1", 0, connections=connections) as server:
        await until(lambda: server.started)
        running = Server(server.port, connections)
        try:
            yield running
        finally:
            for client in running.clients:
                client.writer.transport.abort()


def post(body: bytes, *, length: int | None = None) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def code(response: bytes) -> str:
    body: dict[str, dict[str, str]] = json.loads(response.partition(b"\r\n\r\n")[2])
    return body["error"]["code"]


async def flood(client: Client) -> None:
    """Send until the server closes; fails if it does not."""
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            while True:
                await client.send(b"x" * 65_536)
                await asyncio.sleep(0.01)


async def trickle(client: Client, data: bytes, pause_s: float) -> None:
    """Byte after byte, until the server has had enough."""
    for byte in data:
        if client.writer.is_closing() or client.reader.at_eof():
            return
        client.writer.write(bytes([byte]))
        await asyncio.sleep(pause_s)


async def test_a_client_that_never_asks_is_closed():
    async with serving(idle_s=0.1) as server:
        assert await (await server.connect()).end() == b""
        await until(lambda: server.connections.num_open == 0)


async def test_an_idle_connection_is_kept_for_a_while_and_no_longer():
    async with serving(idle_s=0.3) as server:
        client = await server.connect(LIVE)
        await client.response()
        await asyncio.sleep(0.15)
        await client.send(LIVE)
        assert status(await client.response()) == 200
        assert await client.end() == b""


@pytest.mark.parametrize("head", [b"G", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-More: ", b"POST /v1/chat/completions"])
async def test_a_head_that_never_ends_has_a_time_limit(head: bytes):
    async with serving(slow_request_s=0.1) as server:
        answer = await (await server.connect(head)).end()
    assert (status(answer), code(answer)) == (408, "slow_head")


async def test_a_head_that_drips_gets_no_more_time():
    async with serving(slow_request_s=0.2) as server:
        client = await server.connect()
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trickle(client, b"GET /livez HTTP/1.1\r\nX-Slow: " + b"x" * 1000, 0.01))
            assert status(await client.end()) == 408
        assert time.monotonic() - started_s < 1


async def test_a_body_that_never_ends_has_a_time_limit():
    fake = FakeGenerator()
    async with serving(fake, slow_request_s=0.1) as server:
        answer = await (await server.connect(post(BODY[:10], length=len(BODY)))).end()
    assert (status(answer), code(answer)) == (408, "slow_body")
    assert not fake.calls


async def test_a_body_that_drips_is_given_up():
    async with serving(slow_request_s=0.2) as server:
        client = await server.connect(post(b"", length=1000))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trickle(client, b" " * 1000, 0.01))
            assert status(await client.end()) == 408


async def test_a_slow_client_that_keeps_sending_is_heard_out():
    async with serving(slow_request_s=0.1, min_bytes_per_s=20) as server:
        client = await server.connect(post(b"", length=len(BODY)))
        for at in range(0, len(BODY), 6):
            await client.send(BODY[at : at + 6])
            await asyncio.sleep(0.05)
        assert status(await client.response()) == 200


async def test_the_time_limit_ends_with_the_request():
    async with serving(FakeGenerator(delay_s=0.3), slow_request_s=0.1, idle_s=0.1) as server:
        assert status(await (await server.connect(post(BODY))).response()) == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\r\nX-Large: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(3000)) + b"\r\n",
    ],
    ids=["one header", "path", "many headers"],
)
async def test_a_large_head_is_refused(head: bytes):
    async with serving() as server:
        answer = await (await server.connect(head)).end()
    assert (status(answer), code(answer)) == (431, "head_too_large")


@pytest.mark.parametrize("start", [b"GET /livez HTTP/1.1\r\nX-Large: ", b"GET /"], ids=["header", "path"])
async def test_a_head_without_end_is_not_kept(start: bytes):
    async with serving() as server:
        await flood(await server.connect(start))
        await until(lambda: server.connections.num_open == 0)


@pytest.mark.parametrize("rest", [b"1;ext=", b"0\r\nX-Trailer: "], ids=["chunk extension", "trailer"])
async def test_what_is_beside_a_chunked_body_is_bounded(rest: bytes):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as server:
        client = await server.connect(head + rest + b"x" * 200_000)
        assert status(await client.end()) in (408, 431)


async def test_a_body_that_is_too_large_is_refused_and_not_read_for_ever():
    async with serving() as server:
        client = await server.connect(post(b"x" * 1000, length=10**15))
        assert status(await client.response()) == 413
        await flood(client)


async def test_the_rest_of_a_refused_body_does_not_spoil_the_connection():
    async with serving() as server:
        client = await server.connect(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
        assert status(await client.response()) == 404
        await client.send(b"cd" + LIVE)
        assert status(await client.response()) == 200


async def test_what_is_not_http_is_told_so():
    async with serving() as server:
        answer = await (await server.connect(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello")).end()
    assert (status(answer), code(answer)) == (400, "not_http")


async def test_a_few_requests_may_be_sent_ahead():
    async with serving() as server:
        client = await server.connect(LIVE * 8)
        assert [status(await client.response()) for _ in range(8)] == [200] * 8


async def test_a_flood_of_requests_sent_ahead_ends_the_connection():
    fake = FakeGenerator(delay_s=60)
    async with serving(fake) as server:
        client = await server.connect(post(BODY) + LIVE * 1000)
        assert await client.end() == b""
        await until(lambda: server.connections.num_open == 0)


async def test_leaving_cancels_a_request_behind_which_another_was_sent():
    fake = FakeGenerator(delay_s=60)
    async with serving(fake) as server:
        client = await server.connect(post(BODY) + LIVE)
        await until(lambda: len(fake.calls) == 1)
        client.writer.close()
        await until(lambda: fake.num_cancelled == 1)


async def test_the_longest_idle_connection_gives_way_to_a_new_one():
    async with serving(max_connections=3) as server:
        first, second, third = [await server.connect() for _ in range(3)]
        await third.send(LIVE)
        await third.response()
        late = await server.connect(LIVE)
        assert status(await late.response()) == 200
        assert status(await first.end()) == 503
        await second.send(LIVE)
        assert status(await second.response()) == 200


async def test_who_is_being_answered_never_gives_way():
    fake = FakeGenerator(delay_s=0.2)
    async with serving(fake, max_connections=2) as server:
        busy = [await server.connect(post(BODY)) for _ in range(2)]
        await until(lambda: len(fake.calls) == 2)
        refused = await (await server.connect()).end()
        assert (status(refused), code(refused)) == (503, "too_many_connections")
        assert [status(await client.response()) for client in busy] == [200, 200]


async def test_half_sent_bodies_hold_a_bounded_number_of_bytes():
    async with serving(max_body_bytes=100_000) as server:
        greedy = [await server.connect(post(b" " * 40_000, length=10**6)) for _ in range(4)]
        await until(lambda: server.connections.num_body_bytes <= 100_000 and server.connections.num_open < 4)
        assert status(await (await server.connect(post(BODY))).response()) == 200
        for client in greedy:
            client.writer.close()
        await until(lambda: server.connections.num_body_bytes == 0)


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_a_client_that_never_reads_its_answer_is_given_up(body: bytes):
    fake = FakeGenerator(texts=("x" * 500_000,) * 60)
    async with serving(fake, stalled_s=0.2) as server:
        await server.connect(post(body))
        await until(lambda: len(fake.calls) == 1)
        await until(lambda: server.connections.num_open == 0)


async def test_a_client_that_reads_slowly_but_reads_is_served():
    fake = FakeGenerator(texts=("x" * 200_000,) * 60)
    async with serving(fake, stalled_s=0.3) as server:
        client = await server.connect(post(STREAM))
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            received += await client.reader.read(2**17)
            await asyncio.sleep(0.005)
    assert len(received) > 12_000_000


async def test_neighbours_of_a_client_that_never_reads_notice_nothing():
    fake = FakeGenerator(texts=("x" * 500_000,) * 60)
    async with serving(fake) as server:
        for _ in range(8):
            await server.connect(post(STREAM))
        await until(lambda: len(fake.calls) == 8)
        await asyncio.sleep(0.3)  # for all of them to fill what the kernel holds for them
        times_s = [await _live_s(server) for _ in range(20)]
    assert sorted(times_s)[10] < 0.1


async def test_thousands_of_idle_and_half_sent_connections_hurt_nobody():
    async with serving(max_connections=1000) as server:
        for number in range(2000):
            await server.connect(b"GET / HT" if number % 2 else b"")
        assert server.connections.num_open <= 1000
        assert await _live_s(server) < 1


async def _live_s(server: Server) -> float:
    started_s = time.monotonic()
    assert status(await (await server.connect(LIVE)).response()) == 200
    return time.monotonic() - started_s
