"""Scenario 93: Redis is away for ten seconds under load: no step fails or gets slower, and then Redis catches up."""

import asyncio
import logging
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from kvcache_service.core.identities import Identities
from kvcache_service.core.pools import Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants
from kvcache_service.metadata_store import MetadataStore
from kvcache_service.servicer import SERVICE_NAME, STATUSES, KVCacheServicer
from kvcache_service.watch import Watches
from octavo import server
from octavo.kvcache.v1.kvcache_pb2_grpc import add_KVCacheServiceServicer_to_server
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.recorded import INCARNATION, NAMESPACE_KEY, agrees, record
from tests.kvcache_service.rig import family
from tests.kvcache_service.scripted_scheduler import ScriptedScheduler, scheduling

CALM_S, AWAY_S = 5.0, 10.0
PROMPT_TOKENS = 640


@asynccontextmanager
async def serving(folder: Path, redis_url: str) -> AsyncIterator[tuple[Pools, ScriptedScheduler]]:
    """The real servicer on a socket, and a scheduler that asks it."""
    address, pools = f"unix:{folder}/kv.sock", Pools()
    async with AsyncExitStack() as exits:
        store = await exits.enter_async_context(
            MetadataStore.connect(redis_url, pools, kvcache_incarnation=INCARNATION, namespace_key=NAMESPACE_KEY)
        )
        identities, watches = (
            Identities(Tenants(NAMESPACE_KEY), PublicPrefixes()),
            Watches(pools, incarnation=INCARNATION),
        )
        servicer = KVCacheServicer(pools, store, incarnation=INCARNATION, identities=identities, watches=watches)
        register = partial(add_KVCacheServiceServicer_to_server, servicer)
        await exits.enter_async_context(server.started(address, register, STATUSES, service_names=[SERVICE_NAME]))
        yield pools, await exits.enter_async_context(scheduling(address, num_blocks=401))


class Load:
    """Prompts of several families, decoded a little, in a pool that has to evict all the time."""

    def __init__(self, scheduler: ScriptedScheduler) -> None:
        self._scheduler = scheduler
        self._num_prompts = 0

    async def run(self, seconds: float) -> list[float]:
        """How long the plans took, in seconds."""
        self._scheduler.plan_seconds.clear()
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            while len(self._scheduler.core.running) + self._scheduler.core.num_waiting < 6:
                self._num_prompts += 1
                self._scheduler.submit(family(chr(65 + self._num_prompts % 23), PROMPT_TOKENS), max_tokens=40)
            await self._scheduler.step()
            await asyncio.sleep(0.005)
        return list(self._scheduler.plan_seconds)


def percentiles(seconds: list[float]) -> tuple[float, float]:
    return statistics.median(seconds), statistics.quantiles(seconds, n=100)[97]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_redis_down_for_ten_seconds_under_load(real_redis: RealRedis, tmp_path: Path, how: signal.Signals):
    async with serving(tmp_path, real_redis.socket_url) as (pools, scheduler):
        await scheduler.open()
        load = Load(scheduler)
        await load.run(1.0)
        before = percentiles(await load.run(CALM_S))
        real_redis.send(how)
        during = percentiles(await load.run(AWAY_S))
        assert not (await scheduler.stats()).metadata.connected
        if how is signal.SIGSTOP:
            real_redis.send(signal.SIGCONT)
        else:
            assert real_redis.process is not None
            real_redis.process.wait()
            await asyncio.to_thread(real_redis.start)
        await load.run(CALM_S)
        print(f"median and p98 before {before}, during {during}")
        assert during[0] < 1.5 * before[0] + 0.001
        assert during[1] < 2.0 * before[1] + 0.005
        await scheduler.run()
        await scheduler.until_redis_knows()
        found = await record(real_redis.socket_url)
        (pool,) = pools
        assert found is not None
        assert found.position == pool.position
        agrees(found, pool)


async def test_redis_that_takes_no_writes_is_lost_once_until_it_does(
    real_redis: RealRedis, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A full one answers every ping."""

    def said(event: str) -> int:
        return sum(record.getMessage() == event for record in caplog.records)

    caplog.set_level(logging.INFO)
    async with serving(tmp_path, real_redis.socket_url) as (_, scheduler):
        await scheduler.open()
        await scheduler.until_redis_knows()
        await asyncio.to_thread(real_redis.client.config_set, "maxmemory", "1")
        scheduler.submit(family("A", PROMPT_TOKENS), max_tokens=40)
        await scheduler.run()
        await asyncio.sleep(1.0)
        metadata = (await scheduler.stats()).metadata
        assert not metadata.connected
        assert metadata.num_errors > 2
        assert (said("redis_lost"), said("redis_reached")) == (1, 1)
        await asyncio.to_thread(real_redis.client.config_set, "maxmemory", "0")
        await scheduler.until_redis_knows()
        assert (said("redis_lost"), said("redis_reached")) == (1, 2)
