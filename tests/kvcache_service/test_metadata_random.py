"""Anything may happen to pools and to Redis, in any order; in the end Redis holds what the pools hold."""

import asyncio
import random
import signal
import subprocess
from contextlib import suppress

import pytest

from kvcache_service import metadata_record as layout
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.recorded import Driver, running, up_to_date
from tests.kvcache_service.rig import family

NAMESPACE = b"n" * 16
EXTRAS = (NO_EXTRAS, NO_EXTRAS, Extras(namespace=NAMESPACE))


class Chaos:
    """Pools and a Redis that live and die as a random number generator says."""

    def __init__(self, first: Driver, server: RealRedis, choose: random.Random) -> None:
        self._first, self._server, self._choose = first, server, choose
        self._drivers = [Driver(first.store, first.pools, f"w{number}") for number in range(4)]
        self._num_requests = 0
        self._num_incarnations = 0
        self._is_up = True

    async def go_on(self, num_events: int) -> None:
        for _ in range(num_events):
            event = self._choose.choices(
                [self._plan, self._reopen, self._close, self._forget, self._pin, self._harm, self._wait],
                [30, 2, 1, 2, 3, 2, 8],
            )[0]
            await event()

    async def end(self) -> None:
        """Redis is well again, and there is one more plan in each pool."""
        await self._heal()
        for driver in self._open_drivers():
            self._prefill(driver)
        for driver in self._open_drivers():
            await up_to_date(driver, self._server.url, timeout_s=20.0)
        assert await self._first.store.flushed(20.0)
        directory = layout.directory_key("kvcache")
        assert self._server.client.smembers(directory) == {driver.pool_id.encode() for driver in self._open_drivers()}

    def _open_drivers(self) -> list[Driver]:
        pool_ids = {pool.key.pool_id for pool in self._first.pools}
        return [driver for driver in self._drivers if driver.pool_id in pool_ids]

    def _prefill(self, driver: Driver) -> None:
        self._num_requests += 1
        prompt = family(self._choose.choice("ABCDEF"), self._choose.randint(1, 400))
        driver.prefill(self._num_requests, prompt, self._choose.choice(EXTRAS))

    async def _plan(self) -> None:
        for driver in self._open_drivers():
            self._prefill(driver)
        await asyncio.sleep(0)

    async def _reopen(self) -> None:
        driver = self._choose.choice(self._drivers)
        if self._choose.random() < 0.5 or driver not in self._open_drivers():
            self._num_incarnations += 1
        incarnation = self._num_incarnations if driver not in self._open_drivers() else driver.pool.key.incarnation
        driver.open(num_blocks=101, incarnation=incarnation)

    async def _close(self) -> None:
        for driver in self._open_drivers()[:1]:
            driver.close()

    async def _forget(self) -> None:
        for driver in self._open_drivers():
            if self._choose.random() < 0.5:
                driver.pool.manager.reset_prefix_cache()
            else:
                driver.pool.manager.erase_namespace(NAMESPACE)
            driver.tell()

    async def _pin(self) -> None:
        for driver in self._open_drivers():
            prompt = family(self._choose.choice("ABCDEF"), 48)
            if driver.pool.manager.lookup(prompt, is_committed_only=True):
                driver.pin(self._choose.choice("pq"), prompt, ttl_s=1000.0)

    async def _harm(self) -> None:
        harm = self._choose.choice(["kill", "kill", "stop", "flush"])
        if not self._is_up:
            await self._heal()
        elif harm == "flush":
            await asyncio.to_thread(self._server.client.flushall)
        else:
            self._is_up = False
            self._server.send(signal.SIGKILL if harm == "kill" else signal.SIGSTOP)

    async def _wait(self) -> None:
        await asyncio.sleep(self._choose.choice([0.0, 0.001, 0.02, 0.1]))

    async def _heal(self) -> None:
        if self._is_up:
            return
        self._is_up = True
        process = self._server.process
        assert process is not None
        process.send_signal(signal.SIGCONT)
        if await asyncio.to_thread(_has_ended, self._server):
            await asyncio.to_thread(self._server.start)


def _has_ended(server: RealRedis) -> bool:
    assert server.process is not None
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(0.2)
        server.process = None
    return server.process is None


async def chaos(server: RealRedis, seed: int, num_events: int) -> None:
    async with running(server.url) as driver:
        world = Chaos(driver, server, random.Random(seed))
        await world.go_on(num_events)
        await world.end()


@pytest.mark.parametrize("seed", range(3))
async def test_redis_holds_what_the_pools_hold_in_the_end(real_redis: RealRedis, seed: int):
    await chaos(real_redis, seed, 150)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_redis_holds_what_the_pools_hold_in_the_end_at_length(real_redis: RealRedis, seed: int):
    await chaos(real_redis, seed, 600)
