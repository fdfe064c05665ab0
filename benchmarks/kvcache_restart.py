"""How long a KV cache service with many committed blocks is away when it is killed and started again.

    python -m benchmarks.kvcache_restart [--blocks 100000] [--runs 3]

A real process and a real Redis. The clock runs from the start of the new process until the pool is open, every prefix
is back and a prompt hits; starting Python and importing the libraries are part of it.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kvcache_service.real_redis import RealRedis
from tests.kvcache_service.scripted_scheduler import BLOCK_SIZE, KVCacheProcess, ScriptedScheduler, scheduling

BLOCKS_PER_PROMPT = 500


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from the start of the process."""

    listening_s: float
    serving_s: float


async def measure(num_blocks: int, num_runs: int) -> None:
    """Fill a pool, kill the service, start it; print the times."""
    with tempfile.TemporaryDirectory(prefix="octavo") as name:
        server = RealRedis(Path(name) / "redis")
        server.start(is_durable=False)
        service = KVCacheProcess(Path(name), server.socket_url)
        try:
            service.start()
            async with scheduling(service.address, num_blocks=num_blocks + 2) as scheduler:
                await _fill(scheduler, num_blocks)
                restarts = [await _restart(service, scheduler) for _ in range(num_runs)]
        finally:
            service.kill()
            server.close()
    for title, seconds in (
        ("listening", [restart.listening_s for restart in restarts]),
        ("every prefix back, hits", [restart.serving_s for restart in restarts]),
    ):
        print(f"{title:26} median {statistics.median(seconds):5.2f} s   best {min(seconds):5.2f} s")


async def _fill(scheduler: ScriptedScheduler, num_blocks: int) -> None:
    await scheduler.open()
    started_s = time.perf_counter()
    for number in range(num_blocks // BLOCKS_PER_PROMPT):
        await scheduler.serve(_prompt(number), max_tokens=1)
    await scheduler.until_redis_knows()
    figures = (await scheduler.stats()).pools[0].figures
    print(f"{figures.num_cached} committed blocks, known to Redis after {time.perf_counter() - started_s:.1f} s")
    assert figures.num_cached >= num_blocks, "not every block is cached"


async def _restart(service: KVCacheProcess, scheduler: ScriptedScheduler) -> Restart:
    service.kill()
    started_s = time.perf_counter()
    service.start()
    listening_s = time.perf_counter() - started_s
    await scheduler.open()
    num_hit_tokens = await scheduler.match(_prompt(0))
    serving_s = time.perf_counter() - started_s
    assert num_hit_tokens == BLOCKS_PER_PROMPT * BLOCK_SIZE, f"{num_hit_tokens} tokens hit"
    await scheduler.until_redis_knows()
    return Restart(listening_s, serving_s)


def _prompt(number: int) -> list[int]:
    first = number * BLOCKS_PER_PROMPT * BLOCK_SIZE
    return list(range(first, first + BLOCKS_PER_PROMPT * BLOCK_SIZE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000, help="committed blocks, in steps of 500")
    parser.add_argument("--runs", type=int, default=3, help="restarts that are measured")
    given = parser.parse_args()
    asyncio.run(measure(given.blocks, given.runs))


if __name__ == "__main__":
    main()
