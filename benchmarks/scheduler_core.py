"""What one step costs in the scheduler core: schedule, settle and update, with the real KV cache core in between.

    python -m benchmarks.scheduler_core [--steps 200] [--repeats 3] [--profile]

Prints medians over all steps, and the least median of the repeats, which a busy machine disturbs least. Compare runs
of one machine and one hour only.
"""

import argparse
import cProfile
import pstats
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.simulation.step_cost import Scene, StepCost, Steps
from scheduler_service.core.policy import Policy

CROWDED = Scene(num_waiting=10_000, prompt_tokens=64)
SCENES = {
    "256 decode": Scene(),
    "256 decode, pool of 1,000,000 blocks": Scene(num_blocks=1_000_000),
    "256, blocks are short: some are preempted": Scene(num_blocks=9_000),
    "256 decode, 10,000 wait": CROWDED,
    "256, 2 end and 2 are let in": Scene(num_admissions=2),
    "256, 2 are let in of 10,000, fcfs": replace(CROWDED, num_admissions=2),
    "256, 2 are let in of 10,000, priority": replace(CROWDED, num_admissions=2, policy=Policy.PRIORITY),
    "256, 2 are let in of 10,000, fair": replace(CROWDED, num_admissions=2, policy=Policy.FAIR),
    "1,024 decode": Scene(num_running=1024),
    "1,024, 8 end and 8 are let in": Scene(num_running=1024, num_admissions=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Microseconds."""

    schedule: float
    settle: float
    update: float
    total: float
    total_p99: float
    best_total: float  # of the repeats' medians
    kv: float

    @classmethod
    def of(cls, repeats: Sequence[StepCost]) -> "Figures":
        totals = [us for cost in repeats for us in cost.scheduler_us]
        return cls(
            schedule=statistics.median(us for cost in repeats for us in cost.schedule_us),
            settle=statistics.median(us for cost in repeats for us in cost.settle_us),
            update=statistics.median(us for cost in repeats for us in cost.update_us),
            total=statistics.median(totals),
            total_p99=statistics.quantiles(totals, n=100)[-1],
            best_total=min(statistics.median(cost.scheduler_us) for cost in repeats),
            kv=statistics.median(us for cost in repeats for us in cost.kv_us),
        )


def measure(scene: Scene, *, num_steps: int, num_repeats: int) -> Figures:
    steps = Steps(scene)
    return Figures.of([steps.measure(num_steps) for _ in range(num_repeats)])


def profile(scene: Scene, num_steps: int) -> None:
    """Where the time goes, KV cache core included."""
    steps = Steps(scene)
    with cProfile.Profile() as profiler:
        steps.measure(num_steps)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of one repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="show where the time of 256 decoding requests goes")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(Scene(), arguments.steps)
        return
    print(f"{'us per step':46} schedule  settle  update |  total     p99    best |  KV core")
    for name, scene in SCENES.items():
        us = measure(scene, num_steps=arguments.steps, num_repeats=arguments.repeats)
        print(
            f"{name:46} {us.schedule:8.0f} {us.settle:7.0f} {us.update:7.0f} | {us.total:6.0f} {us.total_p99:7.0f} "
            f"{us.best_total:7.0f} | {us.kv:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
