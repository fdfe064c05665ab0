"""A gateway with many requests that decode: it submits them, counts their tokens, and drops everything at the end."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo.common.v1 import common_pb2
from octavo.message_count import BEAT_S
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc

MAX_PROMPT_TOKENS = 48  # at least half of it: they stand at different places of their blocks


class Crowd:
    """One gateway incarnation and one stream."""

    def __init__(self, num_requests: int, *, max_tokens: int) -> None:
        self.num_tokens = 0
        self._num_requests = num_requests
        self._max_tokens = max_tokens
        self._rng = random.Random(0)
        self._changed = asyncio.Event()
        self._is_ready = False
        self._num_admitted = 0
        self._writing = asyncio.Lock()
        self._num_sent = self._num_received = 0

    async def all_running(self, call: Any) -> None:
        """Wait for a worker, submit everybody, and return when all have been let in."""
        await self._until(lambda: self._is_ready)
        for number in range(1, self._num_requests + 1):
            await self._write(call, submit=self._submit(number))
        await self._until(lambda: self._num_admitted == self._num_requests)

    async def read(self, call: Any) -> None:
        async for message in call:
            self._num_received = message.seq
            if message.HasField("state"):
                self._is_ready = message.state.ready
            events = message.events
            assert not events.rejected, f"refused: {events.rejected[0].failure.message}"
            self._num_admitted += len(events.admitted)
            self.num_tokens += len(events.token_ids) // 4
            self._changed.set()

    async def hello(self, call: Any) -> None:
        await self._write(call, hello=pb.SessionHello(gateway_id="crowd", incarnation=1))

    async def beat(self, call: Any) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._write(call, beat=pb.Beat(last_received_seq=self._num_received))

    async def _write(self, call: Any, **message: Any) -> None:
        async with self._writing:
            self._num_sent += 1
            await call.write(pb.SessionRequest(seq=self._num_sent, **message))

    def _submit(self, number: int) -> pb.Submit:
        num_tokens = self._rng.randint(MAX_PROMPT_TOKENS // 2, MAX_PROMPT_TOKENS)
        prompt = [self._rng.randrange(50_000) for _ in range(num_tokens)]
        return pb.Submit(
            request_num=number,
            prompt_token_ids=array("I", prompt).tobytes(),
            sampling=common_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0),
            stopping=common_pb2.StoppingParams(max_tokens=self._max_tokens),
        )

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def decoding(channel: grpc.aio.Channel, crowd: Crowd) -> AsyncIterator[None]:
    """Everybody runs when the block begins; the stream is lost when it ends."""
    call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session()
    await crowd.hello(call)
    reader, heart = asyncio.create_task(crowd.read(call)), asyncio.create_task(crowd.beat(call))
    try:
        starting = asyncio.create_task(crowd.all_running(call))
        await asyncio.wait([starting, reader], return_when=asyncio.FIRST_COMPLETED)
        if reader.done():
            starting.cancel()
            reader.result()
        yield
    finally:
        reader.cancel()
        heart.cancel()
        call.cancel()
