"""What the services still hold when nobody asks them anything: requests, streams, tables, blocks, keys in Redis."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
from redis.asyncio import Redis

from octavo import client
from octavo.cli import redis_server
from octavo.cli.runtime import ServeState
from octavo.kvcache.v1 import kvcache_pb2 as kv
from octavo.kvcache.v1.kvcache_pb2_grpc import KVCacheServiceStub
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.chaos.invariants import of_kvcache, of_scheduler

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

    def __init__(self, state: ServeState) -> None:
        assert "redis" in state.pids, "the soak test counts the keys of a Redis of its own"
        self._url = state.http_url
        self._scheduler_addr = state.scheduler_addr
        self._kvcache_addr = state.kvcache_addr
        self._redis_url = redis_server.url(Path(state.control_socket).parent)
        self._num_workers = sum(name.startswith("worker") for name in state.pids)

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
        async with client.channel(self._kvcache_addr) as channel:
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
        services = (*of_scheduler(state, self._num_workers), *of_kvcache(stats, self._num_workers))
        return [*services, *open_at_gateway]

    async def _open_at_gateway(self) -> list[str]:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            load = (await http.get(f"{self._url}/load")).json()["server_load"]
            gauges = _OPEN.findall((await http.get(f"{self._url}/metrics")).text)
        found = [f"{load} generations over HTTP at the gateway"] if load else []
        return found + [f"{value} calls at the gateway" for value in gauges if float(value)]

    async def _state(self) -> pb.GetStateResponse:
        async with client.channel(self._scheduler_addr) as channel:
            state: pb.GetStateResponse = await SchedulerServiceStub(channel).GetState(
                pb.GetStateRequest(), timeout=TIMEOUT_S
            )
            return state

    async def _stats(self) -> kv.GetStatsResponse:
        async with client.channel(self._kvcache_addr) as channel:
            stats: kv.GetStatsResponse = await KVCacheServiceStub(channel).GetStats(
                kv.GetStatsRequest(), timeout=TIMEOUT_S
            )
            return stats
