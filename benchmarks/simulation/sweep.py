"""How the cost of a step grows: with the requests that run, with the size of the pool, with those that wait."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.simulation.step_cost import Scene, Steps

RUNNING = (16, 32, 64, 128, 256, 512, 1024)
POOLS = (8_192, 32_768, 131_072, 524_288, 1_048_576)  # blocks, with 256 running
WAITING = (0, 100, 1_000, 10_000)  # behind 256 running
BASE = Scene(prompt_tokens=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Medians of one scene, the least of the repeats: what a busy machine disturbs least."""

    size: int  # of what is swept
    scheduler_us: float
    kv_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Cost by size."""

    by_running: list[Point]
    by_pool: list[Point]
    by_waiting: list[Point]


@dataclass(frozen=True, slots=True)
class Line:
    """A least squares fit, cost = fixed + slope * size."""

    fixed: float
    slope: float
    r_squared: float


def run(*, num_steps: int, num_repeats: int) -> Sweep:
    def point(size: int, scene: Scene) -> Point:
        steps = Steps(scene)
        costs = [steps.measure(num_steps) for _ in range(num_repeats)]
        return Point(
            size=size,
            scheduler_us=min(median(cost.scheduler_us) for cost in costs),
            kv_us=min(median(cost.kv_us) for cost in costs),
        )

    return Sweep(
        by_running=[point(size, replace(BASE, num_running=size)) for size in RUNNING],
        by_pool=[point(size, replace(BASE, num_blocks=size)) for size in POOLS],
        by_waiting=[point(size, replace(BASE, num_waiting=size)) for size in WAITING],
    )


def line(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """The line through these points."""
    num = len(sizes)
    mean_size, mean_cost = sum(sizes) / num, sum(costs) / num
    spread = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((s - mean_size) * (c - mean_cost) for s, c in zip(sizes, costs, strict=True)) / spread
    fixed = mean_cost - slope * mean_size
    missed = sum((c - fixed - slope * s) ** 2 for s, c in zip(sizes, costs, strict=True))
    total = sum((c - mean_cost) ** 2 for c in costs)
    return Line(fixed, slope, 1 - missed / total if total else 1.0)
