"""How long streams end."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo import client
from scheduler_service import streams
from scheduler_service.streams import Outbox, first_of, whole

METHOD = "/octavo.test.v1.TestService/Talk"


class Ending(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """A stream that fails at the first thing it hears, while it writes."""

    def service(self, handler_call_details: Any) -> Any:
        async def talk(requests: AsyncIterator[bytes], context: Any) -> None:
            outbox: Outbox[bytes] = Outbox()
            try:
                await first_of(self._hear(requests, outbox), outbox.write_to(whole(context.write)))
            except ValueError:
                await context.abort(grpc.StatusCode.ABORTED, "a gap")

        return grpc.stream_stream_rpc_method_handler(talk)

    async def _hear(self, requests: AsyncIterator[bytes], outbox: Outbox[bytes]) -> None:
        await anext(requests)
        outbox.put(bytes(1 << 16))
        await asyncio.sleep(0)  # the writer takes it and hands it to grpc
        raise ValueError


@pytest.mark.parametrize("_time", range(20))
async def test_a_stream_that_fails_while_it_writes_ends_for_its_peer(tmp_path: Path, _time: int) -> None:
    server, address = grpc.aio.server(), f"unix:{tmp_path}/s"
    server.add_generic_rpc_handlers((Ending(),))
    server.add_insecure_port(address)
    await server.start()
    async with client.channel(address) as channel:
        call: Any = channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)(None)
        await call.write(b"gap")
        with pytest.raises(grpc.aio.AioRpcError, match="a gap"):
            await asyncio.wait_for(_read_all(call), 5)
    await server.stop(None)


async def _read_all(call: Any) -> None:
    while await call.read():
        pass


async def test_a_cancelled_write_is_finished_first() -> None:
    written, may_end = [], asyncio.Event()

    async def write(message: str) -> None:
        await may_end.wait()
        written.append(message)

    writing = asyncio.ensure_future(whole(write)("a"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert written == ["a"]


async def test_nobody_complains_of_a_last_write_that_fails_after_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that takes nothing: the write is given up, and fails when the stream is gone."""
    monkeypatch.setattr(streams, "LAST_WRITE_S", 0.01)

    async def write(_message: str) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise ValueError("the stream is gone") from None

    writing = asyncio.ensure_future(whole(write)("a"))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text
