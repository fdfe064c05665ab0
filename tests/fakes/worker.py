"""A worker without a model that dials a real scheduler: obeys the contract of WorkerLinkService.Connect."""

import asyncio
import contextlib
from array import array
from typing import Any

import grpc

from octavo.worker.v1 import worker_pb2 as pb
from octavo.worker.v1 import worker_pb2_grpc
from tests.fakes.paged_worker import PagedWorker
from tests.fakes.worker_messages import BLOCK_SIZE, a_hello, step_of


class FakeWorker:
    """One incarnation; `run` is one session. Steps wait while `gate` is cleared; those in `faulty_seqs` fail."""

    def __init__(self, worker_id: str = "w0", *, incarnation: int = 1, num_blocks: int = 64) -> None:
        self.hello = a_hello(worker_id, incarnation, num_blocks)
        self.gate = asyncio.Event()
        self.gate.set()
        self.faulty_seqs: set[int] = set()
        self.received: list[pb.ConnectResponse] = []
        self._outbox: asyncio.Queue[pb.ConnectRequest | None] = asyncio.Queue()  # None = nothing follows
        self._model = PagedWorker(BLOCK_SIZE)
        self._kept: list[pb.StepResult] = []
        self._fault_seq = 0

    async def run(self, channel: grpc.aio.Channel) -> str:
        """From hello to the end of the stream; the reason of a close, or nothing."""
        self.hello.session += 1
        call = worker_pb2_grpc.WorkerLinkServiceStub(channel).Connect()
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.kept_results.extend(self._kept)
        outbox = self._outbox = asyncio.Queue()
        outbox.put_nowait(pb.ConnectRequest(hello=hello))
        others = [asyncio.create_task(_write(call, outbox)), asyncio.create_task(_beat(outbox))]
        try:
            async for message in call:
                self.received.append(message)
                if message.HasField("close"):
                    return str(message.close.reason)
                if message.HasField("step") and message.step.seq > self.hello.last_executed_seq:
                    await self.gate.wait()
                    outbox.put_nowait(pb.ConnectRequest(result=self._result(message.step)))
            return ""
        finally:
            call.cancel()
            for other in others:
                other.cancel()

    def leave(self) -> None:
        """Go for good, in good order; `run` then returns."""
        self._outbox.put_nowait(pb.ConnectRequest(leave=pb.Leave()))
        self.stop_writing()

    def stop_writing(self) -> None:
        """End this side of the stream, without a word."""
        self._outbox.put_nowait(None)

    def _result(self, message: pb.Step) -> pb.StepResult:
        assert message.seq == self.hello.last_executed_seq + 1, f"step {message.seq} came out of order"
        self.hello.last_executed_seq = message.seq
        self._kept = [result for result in self._kept if result.seq > message.acked_seq]
        result = pb.StepResult(session=message.session, step=message.step, seq=message.seq, status=pb.STEP_STATUS_OK)
        if message.acked_seq < self._fault_seq:
            result.status = pb.STEP_STATUS_VOID
        elif message.seq in self.faulty_seqs:
            self._fault_seq, result.status = message.seq, pb.STEP_STATUS_FAULT
            self._model.run(step_of(message), is_faulty=True)
        else:
            result.token_ids = array("I", self._model.run(step_of(message))).tobytes()
        self._kept.append(result)
        return result


async def _write(call: Any, outbox: "asyncio.Queue[pb.ConnectRequest | None]") -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while (message := await outbox.get()) is not None:
            await call.write(message)
        await call.done_writing()


async def _beat(outbox: "asyncio.Queue[pb.ConnectRequest | None]") -> None:
    while True:
        await asyncio.sleep(0.5)
        outbox.put_nowait(pb.ConnectRequest(heartbeat=pb.Heartbeat()))
