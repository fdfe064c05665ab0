"""The scheduler's state as the command line shows it. The only place here that knows its messages."""

from dataclasses import dataclass

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo import client, errors
from octavo.cli.server_address import nobody_at
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc as pb_grpc

TIMEOUT_S = 3.0
FLAG = "--scheduler-addr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One attached worker in numbers."""

    worker_id: str
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_query_tokens: int
    num_hit_tokens: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_output_tokens: int
    mean_step_ms: float
    mean_gap_ms: float
    is_draining: bool
    num_waiting_tokens: int
    wait_reasons: tuple[tuple[str, int], ...]  # (what they wait for, requests)
    tenant_queues: tuple[tuple[str, int], ...]  # (tenant, waiting requests)
    drained_requests_per_s: float | None  # these three are None until measured
    computed_tokens_per_s: float | None
    predicted_ttft_s: float | None
    stall: str  # what its requests wait for without moving, and since when; empty = they move


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler says of itself."""

    is_ready: bool
    reason: str
    is_draining: bool
    uptime_s: float
    model: str
    max_model_len: int
    num_unplaced: int
    is_kvcache_connected: bool
    scheduling_policy: str
    gateways: tuple[tuple[str, int], ...]  # (name, open requests)
    workers: tuple[Worker, ...]


async def state(address: str) -> SchedulerState:
    """Raises CannotAsk if no scheduler answers there."""
    async with client.channel(address) as channel:
        stub = pb_grpc.SchedulerServiceStub(channel)
        try:
            answer = await stub.GetState(pb.GetStateRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise nobody_at(address, errors.from_rpc_error(error).message, FLAG) from None
    return _state(answer)


def _state(answer: pb.GetStateResponse) -> SchedulerState:
    return SchedulerState(
        is_ready=answer.serving.ready,
        reason=answer.serving.reason,
        is_draining=answer.serving.draining,
        uptime_s=answer.uptime_s,
        model=answer.serving.model.name,
        max_model_len=answer.serving.model.max_model_len,
        num_unplaced=answer.num_unplaced,
        is_kvcache_connected=answer.kvcache_connected,
        scheduling_policy=answer.scheduling_policy,
        gateways=tuple((gateway.gateway_id, gateway.num_requests) for gateway in answer.gateways),
        workers=tuple(_worker(worker) for worker in answer.workers),
    )


def _worker(worker: pb.WorkerState) -> Worker:
    return Worker(
        worker_id=worker.worker_id,
        num_running=worker.num_running,
        num_waiting=worker.num_waiting,
        num_blocks=worker.num_blocks,
        num_free_blocks=worker.num_free_blocks,
        num_cached_blocks=worker.num_cached_blocks,
        num_query_tokens=worker.num_query_tokens,
        num_hit_tokens=worker.num_hit_tokens,
        num_steps=worker.num_steps,
        num_preemptions=worker.num_preemptions,
        num_prompt_tokens=worker.num_prompt_tokens,
        num_output_tokens=worker.num_output_tokens,
        mean_step_ms=worker.mean_step_ms,
        mean_gap_ms=worker.mean_gap_ms,
        is_draining=worker.draining,
        num_waiting_tokens=worker.num_waiting_tokens,
        wait_reasons=tuple((waiting.reason, waiting.num_requests) for waiting in worker.wait_reasons),
        tenant_queues=tuple((queue.tenant, queue.num_requests) for queue in worker.tenant_queues),
        drained_requests_per_s=worker.drained_requests_per_s if worker.HasField("drained_requests_per_s") else None,
        computed_tokens_per_s=worker.computed_tokens_per_s if worker.HasField("computed_tokens_per_s") else None,
        predicted_ttft_s=_seconds(worker.predicted_ttft) if worker.HasField("predicted_ttft") else None,
        stall=_stall(worker.stall) if worker.HasField("stall") else "",
    )


def _stall(stall: pb.Stall) -> str:
    return f"not moving for {_seconds(stall.duration):.0f} s, waiting for {stall.message}"


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
