"""A worker that computes nothing: each step takes as long as it is told, and its tokens are all the same.

It runs steps in order, one after the other, and notes how long it stood idle between two of them: with the control
plane wholly behind the steps, the next one lies ready when the one before it ends.
"""

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo.common.v1 import common_pb2
from octavo.worker.v1 import worker_pb2 as pb
from octavo.worker.v1 import worker_pb2_grpc

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
HEARTBEAT_S = 0.5
TOKEN_ID = 7


class ScriptedWorker:
    """One incarnation and one session."""

    def __init__(self, *, step_s: float, num_blocks: int) -> None:
        self.step_s = step_s
        self.gaps_us: list[float] = []  # between the end of a step and the start of the next
        self.step_bytes: list[int] = []
        self.num_rows: list[int] = []
        self._num_blocks = num_blocks
        self._steps: asyncio.Queue[pb.Step] = asyncio.Queue()
        self._outbox: asyncio.Queue[pb.ConnectRequest] = asyncio.Queue()
        self._sequences: dict[int, list[int]] = {}  # handle -> [tokens computed, tokens known]
        self._handles: list[int] = []
        self._last_received_seq = self._last_executed_seq = 0

    def forget_measurements(self) -> None:
        """Begin anew."""
        for column in (self.gaps_us, self.step_bytes, self.num_rows):
            column.clear()

    async def read(self, call: Any) -> None:
        async for message in call:
            if message.HasField("step"):
                self._last_received_seq = message.step.seq
                self.step_bytes.append(message.ByteSize())
                self._steps.put_nowait(message.step)

    async def compute(self) -> None:
        """One step after the other."""
        ended_s: float | None = None
        while True:
            step = await self._steps.get()
            started_s = time.perf_counter()
            if ended_s is not None:
                self.gaps_us.append(1e6 * (started_s - ended_s))
            await asyncio.sleep(self.step_s)
            num_tokens = self._advance(step)
            self._last_executed_seq = step.seq
            ended_s = time.perf_counter()
            result = pb.StepResult(
                session=step.session,
                step=step.step,
                seq=step.seq,
                status=pb.STEP_STATUS_OK,
                token_ids=array("I", [TOKEN_ID] * num_tokens).tobytes(),
            )
            self._outbox.put_nowait(pb.ConnectRequest(result=result))

    async def write(self, call: Any) -> None:
        """The only writer of the stream."""
        while True:
            await call.write(await self._outbox.get())

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            heartbeat = pb.Heartbeat(
                last_executed_seq=self._last_executed_seq, last_received_seq=self._last_received_seq
            )
            self._outbox.put_nowait(pb.ConnectRequest(heartbeat=heartbeat))

    def _advance(self, step: pb.Step) -> int:
        """Rows move on; how many of them sample a token."""
        for handle in array("I", step.released_handles):
            self._sequences.pop(handle, None)
        for new in step.new_requests:
            self._sequences[new.handle] = [new.num_computed_tokens, len(new.token_ids) // 4]
        self._handles = array("I", step.handles).tolist() or self._handles
        self.num_rows.append(len(self._handles))
        counts = array("I", step.num_scheduled_tokens) or [1] * len(self._handles)
        num_sampling = 0
        for handle, count in zip(self._handles, counts, strict=True):
            sequence = self._sequences[handle]
            sequence[0] += count
            if sequence[0] >= sequence[1]:
                sequence[1] += 1
                num_sampling += 1
        return num_sampling

    def hello(self) -> pb.Hello:
        return pb.Hello(
            worker_id="scripted",
            incarnation=1,
            session=1,
            fingerprint=common_pb2.Fingerprint(
                hash_scheme=1,
                model_digest=b"m" * 32,
                tokenizer_digest=b"t" * 32,
                block_size=BLOCK_SIZE,
                kv_dtype="none",
                kv_layout="none",
            ),
            model=common_pb2.ModelInfo(name="scripted", max_model_len=MAX_MODEL_LEN, vocab_size=50_000),
            num_blocks=self._num_blocks,
            max_num_batched_tokens=8192,
        )


@asynccontextmanager
async def attached(channel: grpc.aio.Channel, worker: ScriptedWorker) -> AsyncIterator[None]:
    """The worker serves while the block runs."""
    call = worker_pb2_grpc.WorkerLinkServiceStub(channel).Connect()
    await call.write(pb.ConnectRequest(hello=worker.hello()))
    duties = [
        asyncio.create_task(duty) for duty in (worker.read(call), worker.compute(), worker.write(call), worker.beat())
    ]
    try:
        yield
    finally:
        call.cancel()
        for duty in duties:
            duty.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await duty
