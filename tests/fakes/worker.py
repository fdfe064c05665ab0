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
        self.is_draining = False
        self._outbox: asyncio.Queue[pb.ConnectRequest | None] = asyncio.Queue()  # None = nothing follows
        self._model = PagedWorker(BLOCK_SIZE)
        self._kept: list[pb.StepResult] = []
        self._fault_seq = self._received_seq = 0

    async def run(self, channel: grpc.aio.Channel) -> str:
        """From hello to the end of the stream; the reason of a close, or nothing."""
        self.hello.session += 1
        call = worker_pb2_grpc.WorkerLinkServiceStub(channel).Connect()
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.kept_results.extend(self._kept)
        outbox = self._outbox = asyncio.Queue()
        outbox.put_nowait(pb.ConnectRequest(hello=hello))
        steps: asyncio.Queue[pb.Step] = asyncio.Queue()
        self._received_seq = self.hello.last_executed_seq
        others = [_write(call, outbox), self._beat(outbox), self._execute(steps, outbox)]
        tasks = [asyncio.create_task(other) for other in others]
        try:
            async for message in call:
                self.received.append(message)
                if message.HasField("close"):
                    return str(message.close.reason)
                if message.HasField("drain"):
                    self.leave()
                if message.HasField("step") and message.step.seq > self._received_seq:
                    self._received_seq = message.step.seq
                    steps.put_nowait(message.step)
            return ""
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()

    def drain(self) -> None:
        """Wish to leave; `run` returns when the scheduler lets it go."""
        self.is_draining = True
        self._outbox.put_nowait(self._heartbeat())

    def leave(self) -> None:
        """Go for good, in good order; `run` then returns."""
        self._outbox.put_nowait(pb.ConnectRequest(leave=pb.Leave()))
        self.stop_writing()

    def stop_writing(self) -> None:
        """End this side of the stream, without a word."""
        self._outbox.put_nowait(None)

    async def _execute(
        self, steps: "asyncio.Queue[pb.Step]", outbox: "asyncio.Queue[pb.ConnectRequest | None]"
    ) -> None:
        while True:
            step = await steps.get()
            await self.gate.wait()
            outbox.put_nowait(pb.ConnectRequest(result=self._result(step)))

    async def _beat(self, outbox: "asyncio.Queue[pb.ConnectRequest | None]") -> None:
        while True:
            await asyncio.sleep(0.5)
            outbox.put_nowait(self._heartbeat())

    def _heartbeat(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(
            heartbeat=pb.Heartbeat(
                last_executed_seq=self.hello.last_executed_seq,
                last_received_seq=self._received_seq,
                draining=self.is_draining,
            )
        )

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
