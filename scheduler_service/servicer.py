"""octavo.scheduler.v1.SchedulerService and octavo.worker.v1.WorkerLinkService: streams and calls to the engine."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from octavo.columns import Malformed
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from scheduler_service import session_wire, worker_wire
from scheduler_service.engine import Engine
from scheduler_service.gateway_session import GatewaySession
from scheduler_service.streams import first_of
from scheduler_service.worker_loop import WorkerLoop

SERVICE_NAMES = ("octavo.scheduler.v1.SchedulerService", "octavo.worker.v1.WorkerLinkService")

_M = TypeVar("_M", pb.SessionRequest, worker_pb2.ConnectRequest)


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """What gateways and operators call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Session(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        hello = (await _first(requests)).hello
        engine = self._engine
        gateway = engine.connect(hello.gateway_id, hello.incarnation, hello.tokenizer_digest)
        stream_num = gateway.begin(engine.serving(gateway))
        try:
            await first_of(self._hear(gateway, requests), gateway.write_to(context.write, stream_num))
        finally:
            engine.disconnect(gateway, stream_num)

    async def GetState(self, request: pb.GetStateRequest, context: Any) -> pb.GetStateResponse:
        engine = self._engine
        return pb.GetStateResponse(
            scheduler_incarnation=engine.incarnation,
            uptime_s=time.monotonic() - engine.started_s,
            serving=session_wire.state(engine.serving()),
            workers=[_worker_state(loop) for loop in engine.workers.loops],
            gateways=[
                pb.GatewayState(gateway_id=gateway.gateway_id, num_requests=len(gateway.tickets))
                for gateway in engine.gateways.values()
            ],
            num_unplaced=engine.num_unplaced,
            kvcache_connected=engine.kvcache.is_connected,
        )

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        limit_s = request.limit.ToNanoseconds() / 1e9 if request.HasField("limit") else None
        return pb.DrainResponse(num_open_requests=await self._engine.drain(limit_s))

    async def _hear(self, gateway: GatewaySession, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    self._engine.submit(gateway, session_wire.submission(request.submit))
                case "cancel":
                    reason = session_wire.CANCEL_REASONS.get(request.cancel.reason, "unspecified")
                    self._engine.cancel(gateway, request.cancel.request_num, reason)
                case other:
                    raise Malformed(f"a session goes on with submit or cancel, not with {other}")


class WorkerLinkServicer(worker_pb2_grpc.WorkerLinkServiceServicer):
    """What workers dial."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Connect(self, requests: AsyncIterator[worker_pb2.ConnectRequest], context: Any) -> None:
        message = (await _first(requests)).hello
        attached = self._engine.workers.attach(worker_wire.hello(message))
        loop = attached.loop
        if loop is None:
            await attached.stream.write_to(context.write)
            return
        for result in message.kept_results:
            loop.result(worker_wire.result(result))
        await first_of(self._hear(loop, requests), attached.stream.write_to(context.write))

    async def _hear(self, loop: WorkerLoop, requests: AsyncIterator[worker_pb2.ConnectRequest]) -> None:
        async for request in requests:
            loop.link.heard()
            match request.WhichOneof("message"):
                case "result":
                    loop.result(worker_wire.result(request.result))
                case "leave":  # it must say so: a stream that only ends looks like one that broke
                    self._engine.workers.lose(loop, "it left", has_left=True)


async def _first(requests: AsyncIterator[_M]) -> _M:
    """The hello that begins every stream."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("message") != "hello":
        raise Malformed("a stream begins with hello")
    return first


def _worker_state(loop: WorkerLoop) -> pb.WorkerState:
    core, figures, hello = loop.core, loop.core.figures, loop.link.hello
    return pb.WorkerState(
        worker_id=hello.worker_id,
        incarnation=hello.incarnation,
        session=hello.session,
        num_running=len(core.running),
        num_waiting=core.num_waiting,
        num_blocks=core.pool.num_blocks - 1,
        num_free_blocks=figures.pool.num_free,
        num_cached_blocks=figures.pool.num_cached,
        num_query_tokens=figures.num_query_tokens,
        num_hit_tokens=figures.num_hit_tokens,
        num_steps=figures.num_steps,
        num_preemptions=figures.num_preemptions,
        num_prompt_tokens=figures.num_prompt_tokens,
        num_output_tokens=figures.num_output_tokens,
        mean_step_ms=_mean_ms(loop.recent_step_us),
        mean_gap_ms=_mean_ms(loop.recent_gap_us),
    )


def _mean_ms(microseconds: Sequence[int]) -> float:
    return sum(microseconds) / len(microseconds) / 1000 if microseconds else 0.0
