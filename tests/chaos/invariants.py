"""What must be true of a stack on which nobody wants anything any more: nothing runs, waits or is held anywhere."""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import httpx
from prometheus_client.parser import text_string_to_metric_families

from octavo.kvcache.v1 import kvcache_pb2
from octavo.kvcache.v1.kvcache_pb2_grpc import KVCacheServiceStub
from octavo.scheduler.v1 import scheduler_pb2
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.chaos.stack import Stack

QUIET_LIMIT_S = 20.0  # a gateway that died keeps its requests for 10 s
LOOK_AGAIN_S = 0.2
CALL_LIMIT_S = 5.0
COUNTED = ("vllm:num_requests_running", "vllm:num_requests_waiting", "octavo_gateway_open_answers")


async def broken_after_quiet(stack: Stack, *, limit_s: float = QUIET_LIMIT_S) -> list[str]:
    """What is still not as it should be when `limit_s` have passed; empty as soon as all is well."""
    deadline_s = time.monotonic() + limit_s
    while (broken := [problem async for problem in _broken(stack)]) and time.monotonic() < deadline_s:  # noqa: ASYNC110 - asked for over the wire
        await asyncio.sleep(LOOK_AGAIN_S)
    return broken


async def _broken(stack: Stack) -> AsyncIterator[str]:
    async with (
        grpc.aio.insecure_channel(stack.scheduler_addr) as scheduler,
        grpc.aio.insecure_channel(stack.kvcache_addr) as kvcache,
    ):
        try:
            state = await SchedulerServiceStub(scheduler).GetState(
                scheduler_pb2.GetStateRequest(), timeout=CALL_LIMIT_S
            )
            stats = await KVCacheServiceStub(kvcache).GetStats(kvcache_pb2.GetStatsRequest(), timeout=CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            yield f"no answer: {error.code().name} {error.details()}"
            return
    for problem in (*of_scheduler(state, stack.num_workers), *of_kvcache(stats, stack.num_workers)):
        yield problem
    for url in (f"{stack.quiet_http_url}/metrics", stack.scheduler_metrics_url):
        async for problem in _of_metrics(url):
            yield problem


def of_scheduler(state: scheduler_pb2.GetStateResponse, num_workers: int) -> list[str]:
    """What is not as it should be in the scheduler's state."""
    counts = {
        "workers attached": (len(state.workers), num_workers),
        "gateways": (len(state.gateways), 1),
        "requests without a worker": (state.num_unplaced, 0),
    }
    for gateway in state.gateways:
        counts[f"requests of {gateway.gateway_id}"] = (gateway.num_requests, 0)
    for worker in state.workers:
        counts |= {
            f"running on {worker.worker_id}": (worker.num_running, 0),
            f"waiting on {worker.worker_id}": (worker.num_waiting, 0),
            f"steps in flight on {worker.worker_id}": (worker.num_steps_in_flight, 0),
            f"free blocks of {worker.worker_id} as the scheduler sees it": (worker.num_free_blocks, worker.num_blocks),
        }
    problems = _differing("scheduler", counts)
    if not state.serving.ready:
        problems.append(f"scheduler: not ready: {state.serving.reason}")
    return problems


def of_kvcache(stats: kvcache_pb2.GetStatsResponse, num_workers: int) -> list[str]:
    """What is not as it should be in the KV cache service."""
    counts = {"pools": (len(stats.pools), num_workers), "metadata not yet in Redis": (stats.metadata.num_pending, 0)}
    for pool in stats.pools:
        figures = pool.figures
        counts |= {
            f"tables in {pool.pool_id}": (pool.num_tables, 0),
            f"held blocks in {pool.pool_id}": (figures.num_held, 0),
            f"fenced blocks in {pool.pool_id}": (figures.num_fenced, 0),
            f"free blocks in {pool.pool_id}": (figures.num_free, figures.num_blocks - 1),  # all but the null block
        }
    problems = _differing("kvcache", counts)
    if not stats.metadata.connected:
        problems.append("kvcache: not connected to Redis")
    return problems


def _differing(where: str, counts: dict[str, tuple[int, int]]) -> list[str]:
    return [f"{where}: {there} {what}, not {wanted}" for what, (there, wanted) in counts.items() if there != wanted]


async def _of_metrics(url: str) -> AsyncIterator[str]:
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_LIMIT_S) as http:
        try:
            text = (await http.get(url)).text
        except httpx.TransportError as error:
            yield f"no metrics: {error!r}"
            return
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in COUNTED and sample.value != 0:
                yield f"metrics: {sample.name}{sample.labels} is {sample.value:g}, not 0"
