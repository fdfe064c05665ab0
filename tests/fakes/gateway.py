"""A gateway without clients: submits and cancels on a Session, and collects what comes back."""

import asyncio
import contextlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import grpc

from octavo.common.v1 import common_pb2
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc


class FakeGateway:
    """One incarnation; `run` is one stream."""

    def __init__(self, *, incarnation: int = 7, tokenizer_digest: bytes = b"t" * 32) -> None:
        self._hello = pb.SessionHello(
            gateway_id="g0", incarnation=incarnation, tokenizer_digest=tokenizer_digest
        )  # fmt: skip
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._num_sent = self._num_received = 0  # on this stream
        self._changed = asyncio.Event()
        self.state = pb.ServingState()
        self.num_messages = 0
        self.num_streams = 0  # that have told the state
        self._is_new = True
        self.admitted: dict[int, pb.Admitted] = {}
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, pb.Finished] = {}
        self.rejected: dict[int, pb.Failure] = {}

    async def run(self, channel: grpc.aio.Channel) -> None:
        self._is_new = True
        self._call = call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session()
        self._num_sent = self._num_received = 0
        await self._write(hello=self._hello)
        heart = asyncio.create_task(self._beat(call))
        try:
            async for message in call:
                if call is not self._call:
                    break  # another stream has taken over
                if message.seq > self._num_received:
                    assert message.seq == self._num_received + 1, f"{message.seq} came after {self._num_received}"
                    self._num_received = message.seq
                    self._take(message)
            if call is not self._call:
                await asyncio.Event().wait()  # as if it had forgotten this one
        finally:
            heart.cancel()
            call.cancel()

    async def submit(self, num: int, prompt: Sequence[int], max_tokens: int = 10, **fields: Any) -> None:
        stopping = common_pb2.StoppingParams(max_tokens=max_tokens, eos_token_ids=fields.pop("eos", ()))
        submit = pb.Submit(
            request_num=num,
            prompt_token_ids=array("I", prompt).tobytes(),
            output_token_ids=array("I", self.tokens[num]).tobytes(),
            stopping=stopping,
            sampling=common_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0),
            **fields,
        )
        await self._write(submit=submit)

    async def cancel(self, num: int) -> None:
        await self._write(cancel=pb.Cancel(request_num=num))

    def drop(self) -> None:
        """Lose the stream."""
        self._call.cancel()

    async def until(self, condition: Any, *, timeout_s: float = 10) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def end_of(self, num: int) -> pb.Finished:
        await self.until(lambda: num in self.finished or num in self.rejected)
        return self.finished[num]

    async def _write(self, **message: Any) -> None:
        async with self._writing:
            self._num_sent += 1
            await self._call.write(pb.SessionRequest(seq=self._num_sent, **message))

    async def _beat(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while call is self._call:
                await asyncio.sleep(1)
                await self._write(beat=pb.Beat(last_received_seq=self._num_received))

    def _take(self, message: pb.SessionResponse) -> None:
        self.num_messages += not message.HasField("beat")
        if message.HasField("state"):
            self.state = message.state
            self.num_streams += self._is_new
            self._is_new = False
        events = message.events
        self.admitted |= {admitted.request_num: admitted for admitted in events.admitted}
        ids = iter(array("I", events.token_ids))
        nums = array("I", events.request_nums)
        for num, count in zip(nums, array("I", events.num_tokens) or [1] * len(nums), strict=True):
            self.tokens[num] += [next(ids) for _ in range(count)]
        self.finished |= {finished.request_num: finished for finished in events.finished}
        self.rejected |= {rejected.request_num: rejected.failure for rejected in events.rejected}
        self._changed.set()
