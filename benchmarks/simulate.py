"""Workers, requests and one clock: the real cores of scheduler and KV cache service under a step-time model.

    python -m benchmarks.simulate                       1, 16, 256 and 1,024 workers, Poisson and bursty arrivals
    python -m benchmarks.simulate --workers 16 --rate 12 --duration 20 --arrivals gamma --policy fair
    python -m benchmarks.simulate --sweep               how the cost of a step grows
    python -m benchmarks.simulate --plot docs           the pictures of docs/performance.md

Everything but the `us` columns, which are this machine's, is the same for the same seed.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.simulation import report, sweep
from benchmarks.simulation.cell import Cell
from benchmarks.simulation.step_time import PROFILES
from benchmarks.simulation.worker import Setting
from benchmarks.simulation.workload import Arrivals, Workload, conversations
from scheduler_service.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Size:
    """A cell of the table, sized so that each takes seconds: more workers are simulated for a shorter time."""

    num_workers: int
    rate_per_s: float  # conversations, per worker
    duration_s: float


SIZES = (Size(1, 20.0, 20.0), Size(16, 10.0, 5.0), Size(256, 3.0, 1.0), Size(1024, 1.0, 1.0))
LOADS = (4.0, 8.0, 16.0, 24.0, 32.0, 36.0, 40.0)  # conversations per second on one worker, for the picture


def simulate(num_workers: int, workload: Workload, setting: Setting) -> Cell:
    """Serve a workload; the garbage collector waits, as it does in a server between its rare runs."""
    cell = Cell(num_workers, setting, seed=workload.seed)
    gc.collect()
    gc.disable()
    try:
        cell.run(conversations(workload))
    finally:
        gc.enable()
    return cell


HEADER = (
    "workers arrivals  conv/s  requests   steps | TTFT ms p50    p90     p99 | ITL ms p50    p99 |  hits preempt  Jain "
    "| us: step p50   p99  plan p50  place p50 | took"
)


def row(workload: Workload, cell: Cell, *, took_s: float) -> str:
    outcome, cost = report.outcome(cell), report.cost(cell)
    ttft, itl = outcome.ttft_ms, outcome.itl_ms
    fairness = "   -" if outcome.fairness is None else f"{outcome.fairness:.2f}"
    return (
        f"{len(cell.workers):7d} {workload.arrivals:8} {workload.rate_per_s:7.0f} {outcome.num_requests:9d} "
        f"{outcome.num_steps:7d} | {ttft.p50:11.1f} {ttft.p90:6.1f} {ttft.p99:7.1f} | {itl.p50:10.1f} {itl.p99:6.1f} | "
        f"{100 * outcome.hit_rate:4.0f}% {outcome.num_preemptions:7d} {fairness:>5} | {cost.scheduler_us.p50:12.0f} "
        f"{cost.scheduler_us.p99:5.0f} {cost.kv_us.p50:9.0f} {cost.placement_us.p50:10.0f} | {took_s:3.0f} s"
    )


def print_table(sizes: Sequence[Size], arrivals: Sequence[Arrivals], *, base: Workload, setting: Setting) -> None:
    print(HEADER)
    for size in sizes:
        for kind in arrivals:
            rate = size.rate_per_s * size.num_workers
            workload = replace(
                base, rate_per_s=rate, duration_s=size.duration_s, arrivals=kind, burst_s=size.duration_s / 40
            )
            began = time.perf_counter()
            cell = simulate(size.num_workers, workload, setting)
            print(row(workload, cell, took_s=time.perf_counter() - began), flush=True)


def print_sweep(measured: sweep.Sweep) -> None:
    for title, points in (
        ("requests running", measured.by_running),
        ("blocks in the pool, 256 running", measured.by_pool),
        ("requests waiting, 256 running", measured.by_waiting),
    ):
        print(f"{title:>32}  scheduler us/step  KV core us/plan")
        for point in points:
            print(f"{point.size:32,d}  {point.scheduler_us:17.0f}  {point.kv_us:15.0f}")
    sizes = [point.size for point in measured.by_running]
    for name, costs in (
        ("scheduler", [point.scheduler_us for point in measured.by_running]),
        ("KV core", [point.kv_us for point in measured.by_running]),
    ):
        fit = sweep.line(sizes, costs)
        print(f"{name}: {fit.fixed:.0f} us + {fit.slope:.2f} us per running request, R^2 {fit.r_squared:.3f}")


def main() -> None:
    arguments = _parser().parse_args()
    setting = Setting(
        step_time=PROFILES[arguments.profile],
        policy=Policy(arguments.policy),
        max_num_seqs=arguments.max_num_seqs,
        num_blocks=arguments.num_blocks,
    )
    base = Workload(
        rate_per_s=0.0,
        duration_s=0.0,
        num_system_prompts=arguments.system_prompts,
        turns=arguments.turns,
        num_tenants=arguments.tenants,
        seed=arguments.seed,
    )
    if arguments.plot is not None:
        from benchmarks.simulation import plots  # noqa: PLC0415 - the rest does without matplotlib

        plots.draw_all(arguments.plot, base, setting)
        return
    if arguments.sweep:
        print_sweep(sweep.run(num_steps=100, num_repeats=3))
        return
    wanted = [size for size in SIZES if arguments.workers in (None, size.num_workers)] or [
        Size(arguments.workers, SIZES[0].rate_per_s, SIZES[0].duration_s)
    ]
    sizes = [
        Size(size.num_workers, arguments.rate or size.rate_per_s, arguments.duration or size.duration_s)
        for size in wanted
    ]
    kinds = [Arrivals(arguments.arrivals)] if arguments.arrivals else [Arrivals.POISSON, Arrivals.MMPP]
    print_table(sizes, kinds, base=base, setting=setting)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="only a cell of this many")
    parser.add_argument("--rate", type=float, help="conversations per second and worker")
    parser.add_argument("--duration", type=float, help="seconds in which conversations begin")
    parser.add_argument("--arrivals", choices=list(Arrivals), help="only these")
    parser.add_argument("--policy", choices=list(Policy), default=Policy.FCFS)
    parser.add_argument("--profile", choices=list(PROFILES), default="h100-8b", help="model and device")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--num-blocks", type=int, default=0, help="per worker; 0 = as many as the device holds")
    parser.add_argument("--system-prompts", type=int, default=8, help="different ones, 512 tokens each; 0 = none")
    parser.add_argument("--turns", type=float, default=1.5, help="mean per conversation")
    parser.add_argument("--tenants", type=int, default=4, help="the first brings 40 %% of the conversations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweep", action="store_true", help="how the cost of a step grows with its size")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write the pictures there")
    return parser


if __name__ == "__main__":
    main()
