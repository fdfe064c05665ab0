"""Thousands of requests with aborts, deadlines and the death of every process: is anything left, has anything grown?

    python -m benchmarks.soak [--requests 10000] [--kills 2] [--seed 1] [--model demo] [--log FILE] [-- FLAGS]

Real processes and a real Redis. Without --model a model of random weights answers, so that 10,000 requests take
minutes; `--model demo` takes the demo model. FLAGS are those of `octavo serve`. A process is judged from its last
restart on, in the last half of the run. Exit status 1 if a request ended as none may, something was left, or memory
grew by more than 5 %.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soaking import stack as stacks
from benchmarks.soaking import tiny_model
from benchmarks.soaking.clients import Clients, Outcomes
from benchmarks.soaking.remains import RedisUse
from benchmarks.soaking.samples import Sample, Sampler
from benchmarks.soaking.stack import Stack

MAX_GROWTH = 0.05
QUIET_S = 30.0  # in which everything must be given back; the longest wait is that for a gateway that died (10 s)
NUM_FIRST = 300  # requests before anything is counted
NUM_WARM_UP = 1000  # requests that a process may grow through after its start
ERASE_EVERY_S = 2.0
REQUESTS_PER_CONNECTION = 20
MAX_MORE_FILES = 4  # open files that a process may have more than when the load began, e.g. a client's idle connection
FLAGS = ("--num-workers", "2", "--num-blocks", "160", "--dtype", "float32", "--num-threads", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What to run."""

    num_requests: int
    num_kills: int  # of each process, all in the first 60 % of the requests
    seed: int
    concurrency: int = 12


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of it; `failures` is empty if all is well."""

    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def run(soak: Soak, folder: Path, flags: Sequence[str]) -> Verdict:
    """Start a stack, soak it, and judge what is left."""
    with stacks.running(folder, flags) as stack:
        return await Soaking(soak, stack).run()


class Soaking:
    """One run over a ready stack."""

    def __init__(self, soak: Soak, stack: Stack) -> None:
        self._soak = soak
        self._stack = stack
        self._rng = random.Random(soak.seed)
        self._outcomes = Outcomes()
        self._sampler = Sampler(lambda: stack.pids, lambda: self._num_done)
        self._verdict = Verdict()
        self._began_s = time.monotonic()

    @property
    def _num_done(self) -> int:
        return self._outcomes.counts.total()

    async def run(self) -> Verdict:
        at_first = await self._quiet_after(NUM_FIRST)
        redis_before = await self._loaded()
        at_last = await self._quiet_after(0)
        self._judge_memory()
        self._judge_files(at_first, at_last)
        self._judge_redis(redis_before, await self._stack.remains.redis_use())
        self._verdict.failures += self._outcomes.mistakes[:10]
        counts = ", ".join(f"{count} {word}" for word, count in self._outcomes.counts.most_common())
        self._say(f"{self._num_done} requests in {time.monotonic() - self._began_s:.0f} s: {counts}")
        return self._verdict

    async def _loaded(self) -> RedisUse:
        """All requests, with kills; what Redis held in the middle."""
        half = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sampler.run())
            redis = tasks.create_task(self._redis_at(half))
            killing = tasks.create_task(self._kill_by_plan())
            erasing = tasks.create_task(self._erase_sometimes())
            await self._ask(self._soak.num_requests // 2)
            half.set()
            await self._ask(self._soak.num_requests - self._soak.num_requests // 2)
            sampling.cancel()
            erasing.cancel()
            await killing
        return redis.result()

    async def _ask(self, num_requests: int) -> None:
        """Many clients, each of which comes with connections of its own and leaves them."""
        left = [REQUESTS_PER_CONNECTION] * (num_requests // REQUESTS_PER_CONNECTION)
        left += [num_requests % REQUESTS_PER_CONNECTION]

        async def client() -> None:
            while left:
                rng = random.Random(self._rng.random())
                clients = Clients(self._stack.http_url, self._stack.grpc_addr, rng=rng, outcomes=self._outcomes)
                await clients.ask(left.pop())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._soak.concurrency):
                tasks.create_task(client())

    async def _kill_by_plan(self) -> None:
        """Every process dies `num_kills` times, in random order, spread over the first 60 %."""
        victims = [name for name in self._stack.names for _ in range(self._soak.num_kills)]
        self._rng.shuffle(victims)
        begin, span = self._num_done, 0.6 * self._soak.num_requests
        for number, name in enumerate(victims, 1):
            due = begin + span * number / (len(victims) + 1)
            while self._num_done < due:  # noqa: ASYNC110 - which of the clients will be that far is not known
                await asyncio.sleep(0.05)
            await self._stack.ready()
            self._say(f"after {self._num_done} requests: kill {name}")
            self._stack.kill(name)

    async def _erase_sometimes(self) -> None:
        while True:
            await asyncio.sleep(ERASE_EVERY_S)
            await self._stack.remains.erase(self._rng.choice(("a", "b")))

    async def _redis_at(self, moment: asyncio.Event) -> RedisUse:
        await moment.wait()
        await self._stack.ready()
        return await self._stack.remains.redis_use()

    async def _quiet_after(self, num_requests: int) -> dict[str, Sample]:
        """Ask, wait until everything is given back, and count files."""
        await self._ask(num_requests)
        await self._stack.ready()
        self._verdict.failures += [f"left: {what}" for what in await self._stack.remains.after(QUIET_S)]
        self._sampler.look()
        return self._sampler.latest()

    def _judge_memory(self) -> None:
        growths = self._sampler.growths(since=NUM_FIRST + self._soak.num_requests // 2, warm_up=NUM_WARM_UP)
        for growth in growths:
            line = (
                f"{growth.name:12} {growth.first_bytes / 2**20:7.1f} -> {growth.last_bytes / 2**20:7.1f} MiB "
                f"({growth.share:+.1%}, {growth.bytes_per_request:+.0f} bytes a request over {growth.num_requests})"
            )
            self._say(line)
            if growth.share > MAX_GROWTH:
                self._verdict.failures.append(f"memory grew: {line}")
        unjudged = set(self._stack.names) - {growth.name for growth in growths}
        if unjudged:
            self._say(f"too few samples of {', '.join(sorted(unjudged))} to judge their memory")

    def _judge_files(self, first: dict[str, Sample], last: dict[str, Sample]) -> None:
        for name, sample in last.items():
            before = first[name]
            self._say(
                f"{name:12} files {before.num_files} -> {sample.num_files}, "
                f"threads {before.num_threads} -> {sample.num_threads}"
            )
            if sample.num_files > before.num_files + MAX_MORE_FILES:
                self._verdict.failures.append(f"{name} has {sample.num_files} files open, {before.num_files} before")
            if sample.num_threads > before.num_threads + MAX_MORE_FILES:
                self._verdict.failures.append(f"{name} has {sample.num_threads} threads, {before.num_threads} before")

    def _judge_redis(self, half: RedisUse, end: RedisUse) -> None:
        line = (
            f"redis holds {end.num_keys} keys in {end.num_bytes / 2**20:.2f} MiB, "
            f"at half {half.num_keys} in {half.num_bytes / 2**20:.2f} MiB"
        )
        self._say(line)
        if end.num_keys > half.num_keys + MAX_MORE_FILES:
            self._verdict.failures.append(line)

    def _say(self, line: str) -> None:
        self._verdict.lines.append(line)
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="how many, after a warm-up of 300")
    parser.add_argument("--kills", type=int, default=2, help="of each process")
    parser.add_argument("--seed", type=int, default=1, help="of requests and kills; times differ all the same")
    parser.add_argument("--model", help="instead of random weights: a folder, a file, a hub id, or 'demo'")
    parser.add_argument("--log", type=Path, help="where the log of octavo serve is kept")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="flags of octavo serve")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        model = [str(tiny_model.write(folder))] if given.model is None else []
        model += [given.model] if given.model not in (None, "demo") else []
        soak = Soak(num_requests=given.requests, num_kills=given.kills, seed=given.seed)
        verdict = asyncio.run(run(soak, folder, [*model, *FLAGS, *given.flags]))
        if given.log is not None:
            (log,) = folder.glob("serve-*.log")
            given.log.write_bytes(log.read_bytes())
    for failure in verdict.failures:
        print(f"FAILED: {failure}")
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    sys.exit(main())
