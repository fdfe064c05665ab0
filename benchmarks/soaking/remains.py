"""What the services still hold when nobody asks them anything: requests, streams, tables, blocks, keys in Redis."""

import asyncio
import contextlib
import re
from dataclasses import dataclass

import grpc
import httpx
from redis.asyncio import Redis

from octavo import client
from octavo.cli.serve_plan import Plan
from octavo.kvcache.v1 import kvcache_pb2 as kv
from octavo.kvcache.v1.kvcache_pb2_grpc import KVCacheServiceStub
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub

TIMEOUT_S = 5.0
LOOK_EVERY_S = 0.1
# Gauges of the gateway that count what clients have open.
_OPEN = re.compile(r"^octavo_gateway_open_\w+(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RedisUse:
    """What Redis holds."""

    num_keys: int
    num_bytes: int


class Remains:
    """Asks every service of one stack."""

    def __init__(self, plan: Plan) -> None:
        assert plan.redis_socket is not None, "the soak test counts the keys of a Redis of its own"
        self._url = plan.http_url
        self._addrs = plan.ready_addrs
        self._redis_url = f"unix://{plan.redis_socket}"
        self._num_workers = sum(name.startswith("worker") for name in plan.ready_addrs)

    async def after(self, quiet_s: float) -> list[str]:
        """What is still there once nothing has been asked for `quiet_s`; empty as soon as nothing is."""
        found = ["nothing was asked"]
        for _ in range(round(quiet_s / LOOK_EVERY_S)):
            if not (found := await self._found()):
                return []
            await asyncio.sleep(LOOK_EVERY_S)
        return found

    async def num_pools(self) -> int:
        """Open pools; 0 if the KV cache service does not answer."""
        try:
            return len((await self._stats()).pools)
        except grpc.aio.AioRpcError:
            return 0

    async def erase(self, tenant: str) -> None:
        """Forget a tenant's prefixes, as tenants may ask; the log of events, which fills otherwise, is emptied too."""
        async with client.channel(self._addrs["kvcache"]) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):  # it was killed
                await KVCacheServiceStub(channel).EraseNamespace(
                    kv.EraseNamespaceRequest(tenant=tenant), timeout=TIMEOUT_S
                )

    async def redis_use(self) -> RedisUse:
        async with Redis.from_url(self._redis_url) as redis:
            memory = await redis.info("memory")
            return RedisUse(await redis.dbsize(), memory["used_memory"])

    async def _found(self) -> list[str]:
        try:
            state, stats, open_at_gateway = await asyncio.gather(self._state(), self._stats(), self._open_at_gateway())
        except (grpc.aio.AioRpcError, httpx.HTTPError) as missing:
            return [f"a service does not answer: {missing!r}"]
        return [*_in_scheduler(state), *self._in_kvcache(stats), *open_at_gateway]

    def _in_kvcache(self, stats: kv.GetStatsResponse) -> list[str]:
        found = [] if len(stats.pools) == self._num_workers else [f"{len(stats.pools)} open pools"]
        for pool in stats.pools:
            figures = pool.figures
            if pool.num_tables or figures.num_held or figures.num_fenced:
                found.append(f"pool {pool.pool_id}: {pool.num_tables} tables, {figures.num_held} blocks held")
            elif figures.num_free != figures.num_blocks - 1:
                found.append(f"pool {pool.pool_id}: {figures.num_free} of {figures.num_blocks - 1} blocks free")
        if stats.metadata.num_pending:
            found.append(f"{stats.metadata.num_pending} changes not in Redis")
        return found

    async def _open_at_gateway(self) -> list[str]:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            load = (await http.get(f"{self._url}/load")).json()["server_load"]
            gauges = _OPEN.findall((await http.get(f"{self._url}/metrics")).text)
        found = [f"{load} generations over HTTP at the gateway"] if load else []
        return found + [f"{value} calls at the gateway" for value in gauges if float(value)]

    async def _state(self) -> pb.GetStateResponse:
        async with client.channel(self._addrs["scheduler"]) as channel:
            state: pb.GetStateResponse = await SchedulerServiceStub(channel).GetState(
                pb.GetStateRequest(), timeout=TIMEOUT_S
            )
            return state

    async def _stats(self) -> kv.GetStatsResponse:
        async with client.channel(self._addrs["kvcache"]) as channel:
            stats: kv.GetStatsResponse = await KVCacheServiceStub(channel).GetStats(
                kv.GetStatsRequest(), timeout=TIMEOUT_S
            )
            return stats


def _in_scheduler(state: pb.GetStateResponse) -> list[str]:
    found = [f"{state.num_unplaced} requests wait for any worker"] if state.num_unplaced else []
    held = {f"requests of {gateway.gateway_id}": gateway.num_requests for gateway in state.gateways}
    held |= {f"requests run on {worker.worker_id}": worker.num_running for worker in state.workers}
    held |= {f"requests wait on {worker.worker_id}": worker.num_waiting for worker in state.workers}
    found += [f"{number} {what}" for what, number in held.items() if number]
    return found if state.serving.ready else [*found, f"not ready: {state.serving.reason}"]
