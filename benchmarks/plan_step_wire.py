"""PlanStep over the wire, and whether a step ever waits for it: real KV cache service and scheduler processes.

    python -m benchmarks.plan_step_wire [--num-running 256] [--seconds 6] [--step-ms 10]

First one plan at a time, 5 ms apart, over a Unix socket and over TCP: from the scheduler's wish to its grants, wire
conversion on both sides included. Then the whole control plane with a worker whose steps take 10 ms: how long it stood
idle between two steps, and what the messages weigh. Compare runs of one machine and one hour only.
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from benchmarks.control_plane import crowd, processes, scripted_worker
from benchmarks.control_plane.crowd import Crowd
from benchmarks.control_plane.scripted_worker import ScriptedWorker
from benchmarks.serving import free_ports
from benchmarks.simulation.step_cost import BLOCK_SIZE, Decoding, Scene
from octavo import client
from scheduler_service import kvcache_client, kvcache_wire
from scheduler_service.core.plan import Grants, Plan
from scheduler_service.worker_hello import Fingerprint, Hello

SPACING_S = 0.005
NUM_BLOCKS = 65_536
WARM_UP_S = 1.5


class PlannedOverTheWire:
    """A scheduler core in this process whose plans go to a KV cache service in another."""

    def __init__(self, kvcache: kvcache_client.KVCacheClient, scene: Scene) -> None:
        self.answer_us: list[float] = []
        self.plan_bytes: list[int] = []
        self._kvcache = kvcache
        self._decoding = Decoding(scene)
        self._hello = _hello(scene.num_blocks)

    async def run(self, seconds: float) -> None:
        """Decode, a step every 5 ms."""
        opening = self._decoding.core.next_opening()
        await self._kvcache.open_pool(self._hello, (), opening=opening, scheduler_incarnation=1)
        await self._drive(self._decoding.start())
        self.answer_us.clear()
        self.plan_bytes.clear()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await asyncio.sleep(SPACING_S)
            await self._drive(self._decoding.step())

    async def _drive(self, plans: Generator[Plan, Grants, None]) -> None:
        with contextlib.suppress(StopIteration):
            plan = next(plans)
            while True:
                plan = plans.send(await self._asked(plan))

    async def _asked(self, plan: Plan) -> Grants:
        began = time.perf_counter_ns()
        grants = await self._kvcache.plan(self._hello, plan)
        self.answer_us.append((time.perf_counter_ns() - began) / 1e3)
        self.plan_bytes.append(kvcache_wire.plan(plan, self._hello, opening=1).ByteSize())
        return grants


async def plan_by_plan(address: str, folder: Path, *, num_running: int, seconds: float) -> None:
    with processes.kvcache(address, folder):
        async with kvcache_client.connected(address) as kvcache:
            planned = PlannedOverTheWire(kvcache, Scene(num_running=num_running, num_blocks=NUM_BLOCKS))
            await planned.run(seconds)
    name = address.split(":", maxsplit=1)[0] if address.startswith("unix") else "tcp"
    print(f"PlanStep, {num_running} running, every 5 ms, {name:5}: {_spread(planned.answer_us)} us")
    print(f"  plan message: {_spread(planned.plan_bytes)} bytes", flush=True)


async def beside_steps(folder: Path, *, num_running: int, seconds: float, step_s: float) -> None:
    addresses = [f"unix:{folder}/{name}.sock" for name in ("kvcache", "scheduler")]
    worker = ScriptedWorker(step_s=step_s, num_blocks=NUM_BLOCKS)
    with (
        processes.kvcache(addresses[0], folder),
        processes.scheduler(addresses[1], addresses[0], max_num_seqs=num_running),
    ):
        async with (
            client.channel(addresses[1]) as workers_channel,
            client.channel(addresses[1]) as gateways_channel,
            scripted_worker.attached(workers_channel, worker),
            crowd.decoding(gateways_channel, Crowd(num_running, max_tokens=scripted_worker.MAX_MODEL_LEN)),
        ):
            await asyncio.sleep(WARM_UP_S)
            worker.forget_measurements()
            await asyncio.sleep(seconds)
    gaps, rows = worker.gaps_us, set(worker.num_rows)
    print(
        f"control plane, {num_running} decoding, steps of {1e3 * step_s:g} ms, {len(gaps)} steps of {sorted(rows)} rows"
    )
    print(
        f"  worker idle between steps: {_spread(gaps)} us, {100 * statistics.mean(gaps) / 1e6 / step_s:.2f} % of a step"
    )
    print(f"  step message: {_spread(worker.step_bytes)} bytes", flush=True)


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    p50, p90, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99))
    return f"p50 {p50:,.0f}, p90 {p90:,.0f}, p99 {p99:,.0f}, max {ordered[-1]:,.0f}"


def _hello(num_blocks: int) -> Hello:
    fingerprint = Fingerprint(
        hash_scheme=1,
        model_digest=bytes(32),
        tokenizer_digest=bytes(32),
        block_size=BLOCK_SIZE,
        kv_dtype="none",
        kv_layout="none",
    )
    return Hello(
        worker_id="w0",
        incarnation=1,
        session=1,
        fingerprint=fingerprint,
        model_name="none",
        max_model_len=1 << 20,
        vocab_size=50_000,
        num_blocks=num_blocks,
        max_num_batched_tokens=1 << 16,
        last_executed_seq=0,
    )


async def measure(arguments: argparse.Namespace) -> None:
    gc.freeze()  # as scheduler, gateway and worker do, for which this process stands
    options = {"num_running": arguments.num_running, "seconds": arguments.seconds}
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        folder = Path(name)
        await plan_by_plan(f"unix:{folder}/plan.sock", folder, **options)
        await plan_by_plan(f"127.0.0.1:{free_ports(1)}", folder, **options)
        await beside_steps(folder, step_s=arguments.step_ms / 1e3, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-running", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each of the three parts")
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long the worker's steps take")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
