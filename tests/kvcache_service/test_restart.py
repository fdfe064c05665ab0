"""The service as a process, killed and started again: what was cached is found, and nothing that was overwritten."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_service.kvcache_client import PoolLost
from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.rig import family
from tests.kvcache_service.scripted_scheduler import BLOCK_SIZE, KVCacheProcess, scheduling


@pytest.fixture
def kvcache(real_redis: RealRedis, tmp_path: Path) -> Iterator[KVCacheProcess]:
    process = KVCacheProcess(tmp_path, real_redis.socket_url)
    process.start()
    yield process
    process.kill()


async def test_cached_prefixes_hit_again_after_kill_9(kvcache: KVCacheProcess):
    prompt = family("A", 100)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        assert await scheduler.serve(prompt, prompt) == [0, 96]
        await scheduler.serve(prompt, tenant="t")
        await scheduler.until_redis_knows()
        kvcache.kill()
        kvcache.start()
        await scheduler.open()
        assert await scheduler.serve(prompt) == [96]
        assert await scheduler.serve(prompt, tenant="t") == [96]
        figures = (await scheduler.stats()).pools[0].figures
        assert figures.num_hit_tokens == 3 * 96


async def test_a_request_that_runs_goes_on_with_its_blocks_and_finds_what_lies_behind_them(kvcache: KVCacheProcess):
    prompt = family("A", 100)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        await scheduler.serve(prompt)
        running = scheduler.submit([*prompt, 1], max_tokens=40)
        for _ in range(5):
            await scheduler.step()
        await scheduler.until_redis_knows()
        kvcache.kill()
        kvcache.start()
        await scheduler.open()
        await scheduler.run()
        assert running.num_output_tokens == 40
        assert await scheduler.serve(prompt) == [96]


async def test_blocks_overwritten_behind_a_lagging_journal_do_not_hit(kvcache: KVCacheProcess, real_redis: RealRedis):
    """The pool has room for six prompts. Redis stops when it knows A to F; then G to I take the blocks of A to C."""
    prompts = {letter: family(letter, 64) for letter in "ABCDEFGHI"}
    async with scheduling(kvcache.address, num_blocks=6 * 5 + 1) as scheduler:
        await scheduler.open()
        await scheduler.serve(*(prompts[letter] for letter in "ABCDEF"))
        await scheduler.until_redis_knows()
        real_redis.send(signal.SIGSTOP)
        await scheduler.serve(*(prompts[letter] for letter in "GHI"))
        before = {letter: await scheduler.match(prompts[letter]) for letter in prompts}
        assert before["A"] == 0
        assert before["I"] == 64
        kvcache.kill()
        real_redis.kill()  # what waited in its sockets is lost with it
        real_redis.start()
        kvcache.start()
        await scheduler.open()
        after = {letter: await scheduler.match(prompts[letter]) for letter in prompts}
        assert [after[letter] for letter in "GHI"] == [0, 0, 0]
        assert {letter: after[letter] for letter in "ABCDEF"} == {letter: before[letter] for letter in "ABCDEF"}
        assert sum(after.values()) >= 2 * 64
        await scheduler.serve(*prompts.values())  # the worker checks every slot that it reads


async def test_with_the_journal_far_behind_there_is_nothing_but_the_tables(
    kvcache: KVCacheProcess, real_redis: RealRedis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scheduler_service.core.grant_log.MAX_PLANS", 3)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        await scheduler.serve(family("A", 64))
        await scheduler.until_redis_knows()
        real_redis.send(signal.SIGSTOP)
        await scheduler.serve(*(family(letter, 64) for letter in "BCDE"))
        kvcache.kill()
        real_redis.kill()  # what waited in its sockets is lost with it
        real_redis.start()
        kvcache.start()
        await scheduler.open()
        assert await scheduler.match(family("A", 64)) == 0
        assert await scheduler.serve(family("A", 64)) == [0]


async def test_a_plan_that_the_killed_service_had_answered_to_nobody_is_planned_anew(kvcache: KVCacheProcess):
    prompt = family("A", 4 * BLOCK_SIZE)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        await scheduler.serve(prompt)
        await scheduler.until_redis_knows()
        kvcache.kill()
        request = scheduler.submit([*prompt, 1])
        with pytest.raises(PoolLost):
            await scheduler.step()
        scheduler.core.abandon()
        kvcache.start()
        await scheduler.open()
        await scheduler.run()
        assert request.num_cached_tokens == 64


async def test_another_scheduler_finds_the_pool_empty(kvcache: KVCacheProcess, monkeypatch: pytest.MonkeyPatch):
    prompt = family("A", 100)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        await scheduler.serve(prompt)
        await scheduler.until_redis_knows()
    kvcache.kill()
    kvcache.start()
    monkeypatch.setattr("tests.kvcache_service.scripted_scheduler.SCHEDULER_INCARNATION", 4243)
    async with scheduling(kvcache.address, num_blocks=101) as scheduler:
        await scheduler.open()
        assert await scheduler.serve(prompt) == [0]
