"""gRPC clients that are slow, silent or greedy, some of them over raw HTTP/2: each is bounded."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.config import Limits
from octavo import errors
from octavo.inference.v1 import inference_pb2 as pb
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, running_stack, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">HBBBI", 0, 0, 4, 0, 0)
GENERATE = "/octavo.inference.v1.InferenceService/Generate"


async def connect(folder: Path, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(folder / "gateway.sock"))
    writer.write(sent)
    return reader, writer


async def ends(reader: asyncio.StreamReader) -> bytes:
    """All that the server says until it closes; fails if it does not."""
    async with asyncio.timeout(10):
        return await reader.read()


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    """Of stream 1."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", 1) + payload


def headers(path: str) -> bytes:
    """Of a call, without any compression."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers",
        "content-type": "application/grpc",
    }  # fmt: skip
    return b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items())


async def failure_of(call: Any) -> errors.Failure:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read() if hasattr(call, "read") else await call
    return errors.from_rpc_error(failed.value)


async def serves(stack: Stack) -> None:
    """A neighbour gets its answer."""
    answer = await stack.stub.GenerateOnce(
        pb.GenerateOnceRequest(request=pb.GenerateRequest(text="ab", stopping={"max_tokens": 4})), timeout=10
    )
    assert answer.choices[0].text == "abab"


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE + frame(1, 0, headers(GENERATE))[:-20]])
async def test_a_connection_that_never_makes_a_call_is_closed(tmp_path: Path, sent: bytes, monkeypatch):
    monkeypatch.setattr("gateway.config.GRPC_IDLE_S", 1.0)
    async with running_stack(tmp_path, FakeScheduler(), settings=Limits(slow_request_s=0.5)) as stack:
        reader, writer = await connect(tmp_path, sent)
        await ends(reader)
        writer.close()
        await serves(stack)


async def test_a_call_whose_request_never_comes_has_a_time_limit(tmp_path: Path):
    async with running_stack(tmp_path, FakeScheduler(), settings=Limits(slow_request_s=0.3)) as stack:
        reader, writer = await connect(tmp_path, PREFACE + frame(1, 4, headers(GENERATE)))
        received = b""
        async with asyncio.timeout(10):
            while b"CLIENT_STALLED" not in received and b"did not arrive" not in received:
                received += await reader.read(4096)
        writer.close()
        await serves(stack)


async def test_a_call_without_a_request_is_refused(stack: Stack):
    nothing: Any = stack.channel.stream_stream(GENERATE, request_serializer=bytes, response_deserializer=bytes)
    call = nothing()
    await call.done_writing()
    failure = await failure_of(call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")


async def test_a_request_that_is_no_message_is_refused(stack: Stack):
    garbage = stack.channel.unary_stream(GENERATE, request_serializer=bytes, response_deserializer=bytes)
    failure = await failure_of(garbage(b"\xff" * 100))
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")


async def test_a_gigantic_request_is_refused(stack: Stack):
    garbage = stack.channel.unary_stream(GENERATE, request_serializer=bytes, response_deserializer=bytes)
    assert (await failure_of(garbage(b"x" * (17 << 20)))).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await serves(stack)


async def test_gigantic_metadata_is_refused(stack: Stack):
    call = stack.stub.Generate(pb.GenerateRequest(text="ab"), metadata=(("x-large", "y" * 100_000),))
    assert (await failure_of(call)).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await serves(stack)


async def test_there_are_never_more_connections_than_allowed(tmp_path: Path):
    async with running_stack(tmp_path, FakeScheduler(), settings=Limits(max_connections=4)) as stack:
        await serves(stack)  # over one of them
        connections = [await connect(tmp_path) for _ in range(6)]
        closed = [asyncio.create_task(reader.read()) for reader, _ in connections]
        await until(lambda: sum(task.done() for task in closed) >= 3)
        await serves(stack)
        for task, (_, writer) in zip(closed, connections, strict=True):
            writer.close()
            await task


async def test_neighbours_of_a_client_that_reads_nothing_are_served(tmp_path: Path):
    narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))
    greedy = pb.GenerateRequest(
        text="x" * 200, stopping={"max_tokens": 3000}, sampling={"n": 8}, output=pb.OutputOptions(top_logprobs=20)
    )
    async with (
        running_stack(tmp_path, FakeScheduler(), settings=Limits(stalled_client_s=60)) as stack,
        grpc.aio.insecure_channel(f"unix:{tmp_path}/gateway.sock", options=narrow) as channel,
    ):
        call = type(stack.stub)(channel).Generate(greedy)
        await call.read()
        for _ in range(5):
            await serves(stack)
        call.cancel()
        await until(lambda: stack.session.num_open == 0)
