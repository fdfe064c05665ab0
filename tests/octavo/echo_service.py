"""A gRPC service of plain bytes, for tests of what surrounds every service."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from octavo import errors, telemetry

Channel = Any  # the published types of grpc.aio.Channel demand serializers, which plain bytes do not need
NAME = "octavo.test.v1.EchoService"


class NotHere(Exception):
    """A domain exception, as a core would raise it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.metadata = {"asked": "7"}


STATUSES: errors.StatusTable = {NotHere: (grpc.StatusCode.NOT_FOUND, "NOT_HERE")}


class EchoService:
    """What each method does depends on the request's bytes; `cancelled` tells how a handler ended."""

    def __init__(self) -> None:
        self.seen: telemetry.SpanContext | None = None
        self.cancelled = asyncio.Event()
        self.entered = asyncio.Event()
        self.session_ended = asyncio.Event()

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.seen = telemetry.current_context()
        self.entered.set()
        match request:
            case b"not here":
                raise NotHere("request 7 holds no blocks")
            case b"crash":
                raise KeyError("/secret/path")
            case b"broken":
                raise AssertionError("2 != 3")
            case b"abort":
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, "by hand")
            case b"wait":
                await self._wait()
        return request

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """An async generator handler."""
        yield b"1"
        if request == b"not here":
            raise NotHere("no more")
        if request == b"wait":
            await self._wait()
        yield b"2"

    async def count_by_write(self, request: bytes, context: Any) -> None:
        """The other style of a streaming handler."""
        await context.write(b"1")
        if request == b"not here":
            raise NotHere("no more")
        await context.write(b"2")

    async def session(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A long stream between services."""
        self.seen = telemetry.current_context()
        try:
            async for request in requests:
                if request == b"not here":
                    raise NotHere("no such session")
                yield request
        finally:
            self.session_ended.set()

    async def _wait(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
            "CountByWrite": grpc.unary_stream_rpc_method_handler(self.count_by_write),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(NAME, handlers)])
