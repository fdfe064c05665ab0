"""A KV cache service of its own process, and a scheduler that asks it over the real wire, step by step.

The scheduler's core, grant log and client are the real ones; its worker checks that whatever it reads was written.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from octavo import client
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc
from scheduler_service import kvcache_client
from scheduler_service.core.plan import Identity, Limits, Pool, StepResult
from scheduler_service.core.request import Request, StopRules
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.kvcache_client import KVCacheClient, PoolLost
from scheduler_service.worker_hello import Fingerprint, Hello
from tests.fakes.paged_worker import PagedWorker, continuation

ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
SCHEDULER_INCARNATION = 4242
MAX_MODEL_LEN = 100_000


class KVCacheProcess:
    """`python -m kvcache_service` on a Unix socket; the socket stays the same over restarts."""

    def __init__(self, folder: Path, redis_url: str, **settings: str) -> None:
        self.address = f"unix:{folder}/kv.sock"
        self._process: subprocess.Popen[bytes] | None = None
        given = {"listen_addr": self.address, "redis_url": redis_url, "metrics_port": "0", "namespace_key": "secret"}
        self._environ = {f"OCTAVO_KVCACHE_{name.upper()}": value for name, value in (given | settings).items()}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvcache_service"], cwd=ROOT, env={"PATH": os.environ["PATH"], **self._environ}
        )
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=20)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ScriptedScheduler:
    """One worker, one pool; `run` serves what was submitted until it is done."""

    def __init__(self, kvcache: KVCacheClient, stub: kvcache_pb2_grpc.KVCacheServiceStub, num_blocks: int) -> None:
        self.hello = Hello(
            worker_id="w1", incarnation=5, session=1, model_name="m", max_model_len=MAX_MODEL_LEN, vocab_size=50_000,
            num_blocks=num_blocks, max_num_batched_tokens=8192, last_executed_seq=0,
            fingerprint=Fingerprint(
                hash_scheme=1, model_digest=b"m", tokenizer_digest=b"t", block_size=BLOCK_SIZE, kv_dtype="float32",
                kv_layout="plain",
            ),
        )  # fmt: skip
        pool = Pool(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN)
        self.core = Scheduler(pool=pool, limits=Limits(max_num_batched_tokens=8192))
        self.worker = PagedWorker(BLOCK_SIZE)
        self.plan_seconds: list[float] = []
        self._kvcache = kvcache
        self._stub = stub
        self._num_requests = 0

    async def open(self) -> None:
        """Open the pool; a service that has just started may not be heard at once."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(PoolLost):
                    return await self._open()
                await asyncio.sleep(0.05)

    async def _open(self) -> None:
        figures = await self._kvcache.open_pool(
            self.hello,
            self.core.declare_tables(),
            opening=self.core.next_opening(),
            scheduler_incarnation=SCHEDULER_INCARNATION,
        )
        self.core.pool_reopened(figures)

    def submit(self, prompt: Sequence[int], max_tokens: int = 2, tenant: str = "") -> Request:
        self._num_requests += 1
        request = Request(
            identity=Identity(request_id=f"r{self._num_requests}", tenant=tenant),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            rules=StopRules(max_tokens=max_tokens),
            arrival=float(self._num_requests),
        )
        self.core.submit(request)
        return request

    async def step(self) -> bool:
        """One plan, and its step if it has one; false if there is nothing to do."""
        plan = self.core.schedule()
        if plan is None:
            return False
        started_s = time.perf_counter()
        grants = await self._kvcache.plan(self.hello, plan) if plan.needs_answer else None
        if grants is not None:
            self.plan_seconds.append(time.perf_counter() - started_s)
        settlement = self.core.settle(grants)
        if settlement.step is not None:
            token_ids = self.worker.run(settlement.step)
            self.core.update(StepResult(seq=settlement.step.seq, token_ids=token_ids))
        return True

    async def run(self) -> None:
        while await self.step():
            pass

    async def serve(self, *prompts: Sequence[int], max_tokens: int = 2, tenant: str = "") -> list[int]:
        """Serve prompts one after the other; the cached tokens of each. The answers are those of an undisturbed run."""
        cached = []
        for prompt in prompts:
            request = self.submit(prompt, max_tokens, tenant)
            await self.run()
            assert request.output_token_ids == continuation(prompt, max_tokens)
            cached.append(request.num_cached_tokens)
        return cached

    async def match(self, prompt: Sequence[int]) -> int:
        """Tokens that the service says it has."""
        (found,) = await self._kvcache.match([([*prompt, 0], Identity(request_id=""))])
        match = found["w1"]
        return match if isinstance(match, int) else match.num_cached_tokens

    async def stats(self) -> pb.GetStatsResponse:
        stats: pb.GetStatsResponse = await self._stub.GetStats(pb.GetStatsRequest(), timeout=5)
        return stats

    async def until_redis_knows(self) -> None:
        async with asyncio.timeout(20):
            while (metadata := (await self.stats()).metadata).num_pending or not metadata.connected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scheduling(address: str, *, num_blocks: int) -> AsyncIterator[ScriptedScheduler]:
    async with kvcache_client.connected(address) as kvcache, client.channel(address) as channel:
        yield ScriptedScheduler(kvcache, kvcache_pb2_grpc.KVCacheServiceStub(channel), num_blocks)
