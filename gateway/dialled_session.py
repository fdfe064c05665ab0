"""One stream to the scheduler, from dialling to its loss: its connection, its numbers and its signs of life.

Each stream has a connection of its own: one that is only half open would swallow the next stream as well. What is in
the messages is the session's business. One task reads, one writes.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from octavo import client, errors
from octavo.loop_clock import Hearing, now_s
from octavo.message_count import BEAT_S, SILENCE_S, MessageCount, MessageLost
from octavo.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

LOST = (grpc.aio.AioRpcError, asyncio.InvalidStateError)  # what a stream raises that failed, or that is over


class Outbox:
    """Messages that wait for a stream; what one stream leaves behind the next one takes."""

    def __init__(self) -> None:
        self._messages: deque[scheduler_pb2.SessionRequest] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, message: scheduler_pb2.SessionRequest) -> None:
        self._messages.append(message)
        self._emptied.clear()
        self._filled.set()

    def keep_cancels(self) -> None:
        """A stream was lost: requests are submitted again, so only what is no longer wanted still has to be said."""
        self._messages = deque(message for message in self._messages if message.HasField("cancel"))

    async def emptied(self) -> None:
        """Return when everything is written."""
        await self._emptied.wait()

    async def write_to(self, write: Callable[[scheduler_pb2.SessionRequest], Any]) -> None:
        """Write in order, for ever; what could not be written stays."""
        while True:
            while self._messages:
                await write(self._messages[0])
                self._messages.popleft()
            self._emptied.set()
            self._filled.clear()
            await self._filled.wait()


class DialledSession:
    """One stream. `hear` gets each message once, in order."""

    def __init__(
        self,
        address: str,
        hello: scheduler_pb2.SessionHello,
        *,
        outbox: Outbox,
        hear: Callable[[scheduler_pb2.SessionResponse], None],
    ) -> None:
        self._address = address
        self._hello = hello
        self._outbox = outbox
        self._hear = hear
        self._count = MessageCount()
        self._hearing = Hearing()
        self._answered = asyncio.Event()

    async def run(self) -> str:
        """From hello to loss; what ended it."""
        async with client.own_channel(self._address) as channel:
            call: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session()
            limit = asyncio.timeout(None)
            async with asyncio.TaskGroup() as tasks:
                others = [
                    tasks.create_task(self._write(call), name="scheduler-session-writer"),
                    tasks.create_task(self._beat(), name="scheduler-session-heart"),
                    tasks.create_task(self._end_when_silent(limit), name="scheduler-session-silence"),
                ]
                try:
                    async with limit:
                        return await self._read(call)
                except TimeoutError:
                    return f"it said nothing for {SILENCE_S:g} s"
                except asyncio.CancelledError:
                    if client.is_task_cancelled():
                        raise
                    return "the stream was cancelled"  # which a read raises like this, whoever did it
                except MessageLost as lost:
                    return str(lost)
                except LOST as failed:
                    return _said(failed)
                finally:
                    for other in others:
                        other.cancel()
                    call.cancel()

    async def _read(self, call: Any) -> str:
        while (response := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # its stubs lack it
            self._hearing.heard()
            if not self._count.is_next(response.seq):
                continue
            if response.HasField("beat"):
                self._count.beat(response.beat.last_received_seq, now_s())
            else:
                self._hear(response)
            self._answered.set()
        if await call.code() is not grpc.StatusCode.OK:
            return str(await call.details())
        return f"it ended the stream: {await call.details() or 'no reason given'}"

    async def _write(self, call: Any) -> None:
        """The hello, and once it is answered what is in the outbox. What fails is left to the reader to tell."""

        async def write(message: scheduler_pb2.SessionRequest) -> None:
            message.seq = self._count.next_seq()
            await call.write(message)

        try:
            await write(scheduler_pb2.SessionRequest(hello=self._hello))
            await self._answered.wait()
            await self._outbox.write_to(write)
        except LOST:
            return

    async def _beat(self) -> None:
        await self._answered.wait()
        while True:
            await asyncio.sleep(BEAT_S)
            beat = scheduler_pb2.Beat(last_received_seq=self._count.num_received)
            self._outbox.put(scheduler_pb2.SessionRequest(beat=beat))

    async def _end_when_silent(self, limit: asyncio.Timeout) -> None:
        await self._hearing.silence(SILENCE_S)
        limit.reschedule(asyncio.get_running_loop().time())


def _said(failed: Exception) -> str:
    return errors.from_rpc_error(failed).message if isinstance(failed, grpc.aio.AioRpcError) else str(failed)
