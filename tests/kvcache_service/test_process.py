"""The process: starts without Redis, is healthy, serves, and leaves in good order and at once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import client
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc as pb_grpc
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.service import FINGERPRINT, admit

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20  # of tests, on a busy machine
Process = asyncio.subprocess.Process


@asynccontextmanager
async def running(folder: Path, redis_url: str) -> AsyncIterator[tuple[Process, grpc.aio.Channel]]:
    """The process and a channel to it, when it is healthy."""
    address = f"unix:{folder}/kvcache.sock"
    settings = {
        "OCTAVO_KVCACHE_LISTEN_ADDR": address,
        "OCTAVO_KVCACHE_REDIS_URL": redis_url,
        "OCTAVO_KVCACHE_NAMESPACE_KEY": "key",
        "OCTAVO_KVCACHE_METRICS_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvcache_service", cwd=ROOT, env={"PATH": os.environ["PATH"], **settings}
    )
    try:
        async with client.channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=PATIENCE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            yield process, channel
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def left(process: Process) -> int:
    """The exit status after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(process.wait(), PATIENCE_S)


async def open_pool(channel: grpc.aio.Channel, *, opening: int = 1) -> pb.OpenPoolResponse:
    request = pb.OpenPoolRequest(
        pool_id="w1", session=1, incarnation=5, num_blocks=21, fingerprint=FINGERPRINT, scheduler_incarnation=9,
        opening=opening, granted_after_opening=1, granted_after_step=0,
    )  # fmt: skip
    response: pb.OpenPoolResponse = await pb_grpc.KVCacheServiceStub(channel).OpenPool(request, timeout=PATIENCE_S)
    return response


async def opened(channel: grpc.aio.Channel) -> Any:
    """A stream of plans to a pool with one answered plan, which admits a request of 40 tokens."""
    await open_pool(channel)
    stream = pb_grpc.KVCacheServiceStub(channel).PlanStep()
    await stream.write(plan(1, **admit(1, list(range(40)))))
    assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).step == 1
    return stream


async def rest_of(stream: Any) -> list[Any]:
    responses = []
    while (response := await stream.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # its stubs lack it
        responses.append(response)
    return responses


def plan(step: int, **ops: Any) -> pb.PlanStepRequest:
    return pb.PlanStepRequest(
        pool_id="w1",
        incarnation=5,
        session=1,
        opening=1,
        step=step,
        acked_step=step - 1,
        token_budget=1000,
        max_admissions=9,
        **ops,
    )


async def test_the_process_serves_without_redis_and_leaves_on_sigterm(tmp_path: Path) -> None:
    async with running(tmp_path, f"unix://{tmp_path}/no-redis.sock") as (process, channel):
        stub = pb_grpc.KVCacheServiceStub(channel)
        assert not (await stub.GetStats(pb.GetStatsRequest(), timeout=5)).pools
        assert await left(process) == 0


async def test_its_long_streams_end_in_good_order(tmp_path: Path) -> None:
    async with running(tmp_path, f"unix://{tmp_path}/no-redis.sock") as (process, channel):
        stream = await opened(channel)
        watch = pb_grpc.KVCacheServiceStub(channel).Watch(pb.WatchRequest())
        assert (await watch.read()).events
        await stream.write(plan(2))
        leaving = asyncio.create_task(left(process))
        async with asyncio.timeout(PATIENCE_S):
            assert [response.step for response in await rest_of(stream)] == [2]
            await rest_of(watch)
            assert [await stream.code(), await watch.code()] == [grpc.StatusCode.OK] * 2
        assert await leaving == 0


async def test_what_it_knew_is_in_redis_when_it_has_left(tmp_path: Path, real_redis: RealRedis) -> None:
    async with running(tmp_path, real_redis.url) as (process, channel):
        stream = await opened(channel)
        await stream.write(plan(2))  # says that step 1 was run: two blocks are cached from now on
        assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).step == 2
        assert await left(process) == 0
    async with running(tmp_path, real_redis.url) as (process, channel):
        assert (await open_pool(channel, opening=2)).num_restored_blocks == 2


async def test_a_redis_that_hangs_does_not_keep_it(tmp_path: Path, real_redis: RealRedis) -> None:
    async with running(tmp_path, real_redis.url) as (process, channel):
        real_redis.send(signal.SIGSTOP)
        try:
            await opened(channel)
            async with asyncio.timeout(5):
                assert await left(process) == 0
        finally:
            real_redis.send(signal.SIGCONT)
