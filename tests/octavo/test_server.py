"""The server of a process: health, reflection, addresses, and how it ends."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from octavo import client, server, transport
from octavo.server import Exposure, Readiness
from tests.octavo.echo_service import NAME, STATUSES, Channel, EchoService

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ECHO = f"/{NAME}/Echo"


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
async def running(service: EchoService) -> AsyncIterator[server.Running]:
    async with server.started("127.0.0.1:0", service.register, STATUSES, service_names=[NAME]) as running:
        yield running


def dial(address: str) -> Channel:
    return client.channel(address)


async def status_of(channel: Channel, name: str = "") -> int:
    """As soon as the server listens."""
    request = health_pb2.HealthCheckRequest(service=name)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=5)
    return int(answer.status)


async def test_a_free_port_is_bound_and_named(running: server.Running):
    assert running.port
    assert running.address == f"127.0.0.1:{running.port}"


async def test_messages_of_16_mib_pass_in_both_directions(running: server.Running):
    async with dial(running.address) as channel:
        big = b"x" * (transport.MAX_MESSAGE_BYTES - 16)
        assert await channel.unary_unary(ECHO)(big) == big


async def test_readiness_is_the_health_of_the_process_and_of_each_service():
    readiness = Readiness()
    async with (
        server.started("127.0.0.1:0", lambda _: None, {}, service_names=[NAME], readiness=readiness) as running,
        dial(running.address) as channel,
    ):
        assert [await status_of(channel), await status_of(channel, NAME)] == [NOT_SERVING, NOT_SERVING]
        readiness.set(True)
        assert [await status_of(channel), await status_of(channel, NAME)] == [SERVING, SERVING]
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"no service 'typo' here; there are octavo\.test\.v1\.EchoService"
        ):
            await status_of(channel, "typo")


async def test_health_lists_every_name(running: server.Running):
    async with dial(running.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest())
    assert {name: entry.status for name, entry in answer.statuses.items()} == {"": SERVING, NAME: SERVING}


async def test_watch_tells_every_change():
    readiness = Readiness()
    async with (
        server.started("127.0.0.1:0", lambda _: None, {}, service_names=[NAME], readiness=readiness) as running,
        dial(running.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        seen = [(await watch.read()).status]
        for is_ready in (True, False):
            readiness.set(is_ready, "loading")
            seen.append((await watch.read()).status)
        watch.cancel()
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]


def test_what_is_about_to_end_is_never_ready_again():
    readiness = Readiness(is_ready=True)
    readiness.end("draining")
    readiness.set(True)
    assert (readiness.is_ready, readiness.reason) == (False, "draining")


def test_readiness_says_why_it_is_not_ready():
    readiness = Readiness()
    assert (readiness.is_ready, readiness.reason) == (False, "starting")
    readiness.set(False, "loading weights, 40 %")
    assert readiness.reason == "loading weights, 40 %"
    readiness.set(True, "ignored")
    assert (readiness.is_ready, readiness.reason) == (True, "")


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_lists_the_services_under_both_names(running: server.Running, version: str):
    async with dial(running.address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
    listed = {entry.name for entry in answer.list_services_response.service}
    assert {NAME, "grpc.health.v1.Health"} <= listed


async def test_reflection_can_be_left_out(service: EchoService):
    async with (
        server.started(
            "127.0.0.1:0", service.register, {}, service_names=[NAME], exposure=Exposure(reflection=False)
        ) as running,
        dial(running.address) as channel,
    ):
        assert await channel.unary_unary(ECHO)(b"x") == b"x"
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")()
        with pytest.raises(grpc.aio.AioRpcError, match="Method not found"):
            await call.read()


async def test_a_taken_port_says_what_is_expected_there(running: server.Running):
    with pytest.raises(server.CannotListen) as refused:
        async with server.started(running.address, lambda _: None, {}, service_names=[NAME]):
            pass
    assert f"cannot listen on {running.address}: the address is in use" in str(refused.value)
    assert f"{NAME} is expected there" in str(refused.value)


async def test_a_unix_socket_is_served_and_removed(tmp_path: Path, service: EchoService):
    path = tmp_path / "kv.sock"
    async with server.started(f"unix:{path}", service.register, STATUSES, service_names=[NAME]) as running:
        assert (running.address, running.port) == (f"unix:{path}", None)
        async with dial(running.address) as channel:
            assert await channel.unary_unary(ECHO)(b"hi") == b"hi"
    assert not path.exists()


async def test_a_socket_that_somebody_listens_on_is_not_stolen(tmp_path: Path, service: EchoService):
    address = f"unix:{tmp_path / 'kv.sock'}"
    async with server.started(address, service.register, STATUSES, service_names=[NAME]):
        with pytest.raises(server.CannotListen, match="another process listens there"):
            async with server.started(address, service.register, STATUSES, service_names=[NAME]):
                pass
        async with dial(address) as channel:
            assert await channel.unary_unary(ECHO)(b"hi") == b"hi"


async def test_a_socket_left_by_a_dead_server_is_taken_over(tmp_path: Path, service: EchoService):
    path = tmp_path / "kv.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    async with (
        server.started(f"unix:{path}", service.register, STATUSES, service_names=[NAME]) as running,
        dial(running.address) as channel,
    ):
        assert await channel.unary_unary(ECHO)(b"hi") == b"hi"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path):
    (tmp_path / "kv.sock").write_text("precious")
    with pytest.raises(server.CannotListen, match="a file that is not a socket lies there"):
        async with server.started(f"unix:{tmp_path / 'kv.sock'}", lambda _: None, {}, service_names=[NAME]):
            pass


async def test_serve_drains_in_order_and_returns(tmp_path: Path, service: EchoService):
    """NOT_SERVING first, then the drain, then the calls in flight, then the long streams."""
    readiness = Readiness(is_ready=True)
    draining, release = asyncio.Event(), asyncio.Event()

    async def drain() -> None:
        assert not readiness.is_ready
        draining.set()
        await release.wait()

    address = f"unix:{tmp_path / 's'}"
    serving = asyncio.create_task(
        server.serve(address, service.register, STATUSES, service_names=[NAME], readiness=readiness, drain=drain)
    )
    async with dial(address) as channel:
        await status_of(channel)
        session = channel.stream_stream(f"/{NAME}/Session")()
        await session.write(b"x")
        await session.read()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(draining.wait(), 5)
        assert await channel.unary_unary(ECHO)(b"still served") == b"still served"
        release.set()
        await asyncio.wait_for(serving, 5)
    assert service.session_ended.is_set()


async def test_serve_waits_for_the_calls_in_flight_but_not_for_ever(tmp_path: Path, service: EchoService):
    address = f"unix:{tmp_path / 's'}"
    serving = asyncio.create_task(
        server.serve(address, service.register, STATUSES, service_names=[NAME], drain_timeout_s=0.2)
    )
    async with dial(address) as channel:
        await status_of(channel)
        call = channel.unary_unary(ECHO)(b"wait")
        await asyncio.wait_for(service.entered.wait(), 5)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 5)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    assert service.cancelled.is_set()


async def test_a_broken_invariant_ends_the_process(tmp_path: Path, service: EchoService):
    address = f"unix:{tmp_path / 's'}"
    serving = asyncio.create_task(server.serve(address, service.register, STATUSES, service_names=[NAME]))
    async with dial(address) as channel:
        await status_of(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(ECHO)(b"broken")
    with pytest.raises(AssertionError, match="2 != 3"):
        await asyncio.wait_for(serving, 5)
