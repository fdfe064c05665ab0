"""octavo.scheduler.v1.SchedulerService and octavo.worker.v1.WorkerLinkService: streams and calls to the engine."""

import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from octavo.columns import Malformed
from octavo.loop_clock import now_s
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from scheduler_service import session_wire, state_wire, worker_wire
from scheduler_service.engine import Engine
from scheduler_service.gateway_session import GatewaySession
from scheduler_service.session_stream import SessionStream
from scheduler_service.streams import first_of, whole
from scheduler_service.worker_link import keep_beating
from scheduler_service.worker_loop import WorkerLoop

SERVICE_NAMES = ("octavo.scheduler.v1.SchedulerService", "octavo.worker.v1.WorkerLinkService")

_M = TypeVar("_M", pb.SessionRequest, worker_pb2.ConnectRequest)


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """What gateways and operators call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Session(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        first = await _first(requests)
        hello, engine = first.hello, self._engine
        gateway = engine.connect(hello.gateway_id, hello.incarnation, hello.tokenizer_digest)
        stream = gateway.begin(engine.serving(gateway))
        stream.is_next(first.seq)
        try:
            await first_of(
                self._hear(gateway, stream, requests),
                gateway.write_to(whole(context.write), stream),
                gateway.beat(),
                stream.silence(),
            )
        finally:
            engine.gateways.disconnect(gateway, stream)

    async def GetState(self, request: pb.GetStateRequest, context: Any) -> pb.GetStateResponse:
        engine = self._engine
        return pb.GetStateResponse(
            scheduler_incarnation=engine.incarnation,
            uptime_s=time.monotonic() - engine.started_s,
            serving=session_wire.state(engine.serving()),
            workers=[state_wire.worker(loop) for loop in engine.workers.loops],
            gateways=[
                pb.GatewayState(gateway_id=gateway.gateway_id, num_requests=len(gateway.tickets))
                for gateway in engine.gateways
            ],
            num_unplaced=engine.num_unplaced,
            kvcache_connected=engine.kvcache.is_connected,
            scheduling_policy=engine.workers.policy.value,
        )

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        limit_s = request.limit.ToNanoseconds() / 1e9 if request.HasField("limit") else None
        if request.worker_id:
            num_open = await self._engine.workers.drained(request.worker_id, limit_s)
        else:
            num_open = await self._engine.drain(limit_s)
        return pb.DrainResponse(num_open_requests=num_open)

    async def _hear(
        self, gateway: GatewaySession, stream: SessionStream, requests: AsyncIterator[pb.SessionRequest]
    ) -> None:
        async for request in requests:
            if not gateway.is_current(stream):
                return
            if not stream.is_next(request.seq):
                continue
            match request.WhichOneof("message"):
                case "submit":
                    self._engine.submit(gateway, session_wire.submission(request.submit))
                case "cancel":
                    reason = session_wire.CANCEL_REASONS.get(request.cancel.reason, "unspecified")
                    self._engine.cancel(gateway, request.cancel.request_num, reason)
                case "beat":
                    stream.beat(request.beat.last_received_seq)
                case other:
                    raise Malformed(f"a session goes on with submit, cancel or beat, not with {other}")


class WorkerLinkServicer(worker_pb2_grpc.WorkerLinkServiceServicer):
    """What workers dial."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Connect(self, requests: AsyncIterator[worker_pb2.ConnectRequest], context: Any) -> None:
        message = (await _first(requests)).hello
        kept_seqs = [result.seq for result in message.kept_results]
        attached = self._engine.workers.attach(worker_wire.hello(message), kept_seqs)
        loop = attached.loop
        if loop is None:
            await attached.stream.write_to(whole(context.write))
            return
        try:
            for result in message.kept_results:
                _take(loop, result)
            await first_of(
                self._hear(loop, requests),
                attached.stream.write_to(whole(context.write)),
                keep_beating(attached.stream),
            )
        finally:
            self._engine.workers.stream_ended(loop, attached.stream)

    async def _hear(self, loop: WorkerLoop, requests: AsyncIterator[worker_pb2.ConnectRequest]) -> None:
        async for request in requests:
            loop.link.heard()
            match request.WhichOneof("message"):
                case "result":
                    _take(loop, request.result)
                case "heartbeat":
                    loop.link.beat(request.heartbeat, now_s())
                    if request.heartbeat.draining or loop.is_draining:
                        self._engine.workers.drain(loop)
                case "leave":  # it must say so: a stream that only ends looks like one that broke
                    self._engine.workers.lose(loop, "it left", has_left=True)


def _take(loop: WorkerLoop, result: worker_pb2.StepResult) -> None:
    if loop.link.is_next_result(result.seq):
        loop.result(worker_wire.result(result))


async def _first(requests: AsyncIterator[_M]) -> _M:
    """The hello that begins every stream."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("message") != "hello":
        raise Malformed("a stream begins with hello")
    return first
