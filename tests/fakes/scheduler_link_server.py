"""The scheduler's side of WorkerLinkService, driven by a test: welcomes, keeps what comes, sends what it is told.

Obeys the contract of the proto; plans nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import numpy as np

from octavo import server
from octavo.errors import Failed, Failure
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc


class Stream:
    """One worker's stream, as a test sees it."""

    def __init__(self, hello: worker_pb2.Hello) -> None:
        self.hello = hello
        self.results: asyncio.Queue[worker_pb2.StepResult] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[worker_pb2.Heartbeat] = asyncio.Queue()
        self.outgoing: asyncio.Queue[worker_pb2.ConnectResponse | None] = asyncio.Queue()
        self.beating: asyncio.Future[None] | None = None
        self.has_left = False  # the worker said so
        self.is_broken = False
        self.ended = asyncio.Event()  # the worker closed its side

    def send(self, **message: Any) -> None:
        self.outgoing.put_nowait(worker_pb2.ConnectResponse(**message))

    async def beat(self) -> None:
        """Signs of life, as long as it is not told otherwise."""
        while True:
            await asyncio.sleep(0.5)
            self.send(beat=worker_pb2.Beat())

    def fall_silent(self) -> None:
        if self.beating is not None:
            self.beating.cancel()

    def hang_up(self) -> None:
        """End the stream in good order."""
        self.outgoing.put_nowait(None)

    def break_off(self) -> None:
        """End the stream as a scheduler that dies does, as far as the worker can tell."""
        self.is_broken = True
        self.hang_up()


class SchedulerLinkServer(worker_pb2_grpc.WorkerLinkServiceServicer):
    """Welcomes every worker; each stream waits in `streams`."""

    def __init__(self) -> None:
        self.address = ""
        self.acked_seq = 0  # what welcome says
        self.welcomes = True  # False: streams begin without a word
        self.releases = True  # a worker that drains; it has no requests that anybody knows of
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()

    async def Connect(
        self, requests: AsyncIterator[worker_pb2.ConnectRequest], context: object
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        stream = Stream((await anext(requests)).hello)
        if self.welcomes:
            welcome = worker_pb2.Welcome(scheduler_incarnation=7, acked_seq=self.acked_seq)
            yield worker_pb2.ConnectResponse(welcome=welcome)
            stream.beating = asyncio.ensure_future(stream.beat())
        self.streams.put_nowait(stream)
        reading = asyncio.ensure_future(self._read(requests, stream))
        while (message := await stream.outgoing.get()) is not None:
            yield message
        reading.cancel()
        stream.fall_silent()
        if stream.is_broken:
            raise Failed(Failure(code=grpc.StatusCode.UNAVAILABLE, reason="BROKEN", message="the socket was closed"))

    async def _read(self, requests: AsyncIterator[worker_pb2.ConnectRequest], stream: Stream) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "result":
                    stream.results.put_nowait(request.result)
                case "heartbeat":
                    stream.heartbeats.put_nowait(request.heartbeat)
                    if request.heartbeat.draining and self.releases:
                        stream.send(drain=worker_pb2.Drain())
                case "leave":
                    stream.has_left = True
        stream.ended.set()
        stream.hang_up()


def packed(*values: int) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


@asynccontextmanager
async def listening(address: str = "127.0.0.1:0") -> AsyncIterator[SchedulerLinkServer]:
    fake = SchedulerLinkServer()
    register = partial(worker_pb2_grpc.add_WorkerLinkServiceServicer_to_server, fake)
    names = ["octavo.worker.v1.WorkerLinkService"]
    async with server.started(address, register, {}, service_names=names) as running:
        fake.address = running.address
        yield fake
