"""A gRPC proxy that loses, doubles, swaps and delays messages, and cuts streams: stands between two real processes.

It moves bytes and decodes nothing. What goes wrong is drawn from a seed.
"""

import asyncio
import enum
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo import client, transport
from scheduler_service.streams import whole

LATE_S = 0.15  # after which a held message goes out although none has followed


class Fault(enum.Enum):
    """What may happen to a message."""

    DROP = "drop"
    DUPLICATE = "duplicate"  # it comes again, after the one behind it
    REORDER = "reorder"  # it changes places with the one behind it
    DELAY = "delay"  # it and all behind it come late
    CUT = "cut"  # the stream ends instead, in both directions


class Direction(enum.Enum):
    """Which way a message goes."""

    UP = "up"  # from the process that dialled
    DOWN = "down"


class Faults:
    """Draws what happens to each message; never more than `most` faults in all."""

    def __init__(self, *, kinds: list[Fault], directions: list[Direction], seed: int, rate: float, most: int) -> None:
        self._kinds = kinds
        self._directions = directions
        self._random = random.Random(seed)
        self._rate = rate
        self._most = most
        self.done: Counter[tuple[Direction, Fault]] = Counter()
        self.concern: Callable[[bytes], bool] = bool  # the messages that anything may happen to

    def draw(self, direction: Direction, message: bytes) -> Fault | None:
        if direction not in self._directions or self.done.total() >= self._most or not self.concern(message):
            return None
        if self._random.random() >= self._rate:
            return None
        fault = self._random.choice(self._kinds)
        self.done[direction, fault] += 1
        return fault

    def delay_s(self) -> float:
        return self._random.uniform(0.01, 0.4)


class Cut(Exception):
    """The stream ends here."""


class Lane:
    """One direction of one stream: what comes in, what goes wrong with it, what goes out."""

    def __init__(self, faults: Faults | None, direction: Direction, flows: asyncio.Event) -> None:
        self._faults = faults
        self._direction = direction
        self._flows = flows
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._held: list[bytes] = []

    async def read(self, source: AsyncIterator[bytes]) -> None:
        async for message in source:
            fault = self._faults.draw(self._direction, message) if self._faults is not None else None
            await self._take(message, fault)
        self._release()
        self._outgoing.put_nowait(None)

    async def write_to(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        while (message := await self._outgoing.get()) is not None:
            await self._flows.wait()
            await write(message)

    async def _take(self, message: bytes, fault: Fault | None) -> None:
        match fault:
            case None:
                self._outgoing.put_nowait(message)
            case Fault.DUPLICATE:
                self._outgoing.put_nowait(message)
                self._hold(message)
                return
            case Fault.REORDER:
                self._hold(message)
                return
            case Fault.DELAY:
                assert self._faults is not None
                await asyncio.sleep(self._faults.delay_s())
                self._outgoing.put_nowait(message)
            case Fault.CUT:
                raise Cut
            case Fault.DROP:
                return
        self._release()

    def _hold(self, message: bytes) -> None:
        self._held.append(message)
        asyncio.get_running_loop().call_later(LATE_S, self._release)

    def _release(self) -> None:
        for message in self._held:
            self._outgoing.put_nowait(message)
        self._held.clear()


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Forwards every method; `faults` happen to messages of `method` only."""

    def __init__(self, target: str, method: str, faults: Faults) -> None:
        self.faults = faults
        self.num_streams = 0  # of `method`
        self.rewrite: Callable[[bytes], bytes] = bytes  # what becomes of each message of `method` that goes down
        self._streams: set[asyncio.Event] = set()  # of `method`; setting one cuts it
        self._target = target
        self._method = method
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for event in self._flows.values():
            event.set()

    def hold(self, direction: Direction) -> None:
        """Let nothing through until `let_go`."""
        self._flows[direction].clear()

    def let_go(self, direction: Direction) -> None:
        self._flows[direction].set()

    def cut(self) -> None:
        """End the streams of `method` that there are."""
        for is_cut in self._streams:
            is_cut.set()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        async def forward(requests: AsyncIterator[bytes], context: Any) -> None:
            await self._forward(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(forward)

    async def _forward(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        """One call, to its end; a channel of its own, so that a cut stream takes no other with it."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with client.channel(self._target, options=options) as channel:
            call = channel.stream_stream(method, request_serializer=None, response_deserializer=None)(None)
            try:
                await self._run(method, requests, call, context)
            except Cut:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy cut the stream")
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
            finally:
                call.cancel()

    async def _run(self, method: str, requests: AsyncIterator[bytes], call: Any, context: Any) -> None:
        is_ours, is_cut = method == self._method, asyncio.Event()
        if is_ours:
            self.num_streams += 1
            self._streams.add(is_cut)
        faults = self.faults if is_ours else None
        up, down = (Lane(faults, direction, self._flows[direction]) for direction in Direction)

        async def write_down(message: bytes) -> None:
            await context.write(self.rewrite(message) if is_ours else message)

        async def write_up() -> None:
            await up.write_to(call.write)
            await call.done_writing()

        answering = asyncio.ensure_future(together(down.read(aiter(call)), down.write_to(whole(write_down))))
        asking = asyncio.ensure_future(together(up.read(requests), write_up()))
        cutting = asyncio.ensure_future(is_cut.wait())
        try:
            await asyncio.wait((answering, asking, cutting), return_when=asyncio.FIRST_COMPLETED)
            if cutting.done() or (asking.done() and isinstance(asking.exception(), Cut)):
                raise Cut
            await answering  # why a write failed, the reader sees
        finally:
            self._streams.discard(is_cut)
            for task in (answering, asking, cutting):
                task.cancel()
            await asyncio.gather(answering, asking, cutting, return_exceptions=True)


async def together(*parts: Awaitable[None]) -> None:
    """Run to the end; the first failure ends the others, and all are over when this returns."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def listening(address: str, target: str, method: str, *, faults: Faults) -> AsyncIterator[Proxy]:
    """A proxy on `address` before `target`."""
    proxy = Proxy(target, method, faults)
    server = grpc.aio.server(handlers=(proxy,), options=transport.OPTIONS)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield proxy
    finally:
        await server.stop(None)
