"""The pictures of docs/performance.md: latency by load, latency by kind of arrivals, cost of a step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from benchmarks.simulation import report, sweep
from benchmarks.simulation.cell import Cell
from benchmarks.simulation.worker import Setting
from benchmarks.simulation.workload import Arrivals, Workload, conversations

LOADS = (4, 8, 16, 24, 32, 40)  # conversations per second on one worker
ARRIVALS_RATE = 28
DURATION_S = 20.0
DPI = 90


def draw_all(folder: Path, base: Workload, setting: Setting) -> None:
    """Three PNGs."""
    for name, figure in (
        ("simulated-load.png", load(base, setting)),
        ("simulated-arrivals.png", arrivals(base, setting)),
        ("step-cost.png", step_cost(sweep.run(num_steps=100, num_repeats=3))),
    ):
        path = folder / name
        figure.savefig(path, dpi=DPI)
        plt.close(figure)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def load(base: Workload, setting: Setting) -> Any:
    """TTFT and ITL as the load of one worker rises, with and without shared system prompts."""
    figure, (left, right) = _panels("One simulated worker: H100, 8B model, 640-token prompts, 128 tokens out")
    for num_system_prompts, colour, label in ((8, "tab:blue", "8 system prompts"), (100_000, "tab:red", "none shared")):
        outcomes = []
        for rate in LOADS:
            workload = replace(
                base, rate_per_s=rate, duration_s=DURATION_S, num_system_prompts=num_system_prompts, turns=1
            )
            outcomes.append(report.outcome(_served(workload, setting)))
        for axes, figures in (
            (left, [outcome.ttft_ms for outcome in outcomes]),
            (right, [outcome.itl_ms for outcome in outcomes]),
        ):
            axes.plot(LOADS, [each.p50 for each in figures], color=colour, marker="o", label=f"{label}, p50")
            axes.plot(LOADS, [each.p99 for each in figures], color=colour, marker=".", ls="--", label=f"{label}, p99")
    for axes, name in ((left, "time to first token"), (right, "inter-token latency")):
        _label(axes, name, "requests per second", "ms")
        axes.set_yscale("log")
        _plain(axes.yaxis)
    left.legend(fontsize=8)
    return figure


def arrivals(base: Workload, setting: Setting) -> Any:
    """How the same mean rate feels when it comes in bursts."""
    figure, (left, right) = _panels(f"The same {ARRIVALS_RATE} conversations per second, arriving in three ways")
    for kind, label in (
        (Arrivals.POISSON, "Poisson"),
        (Arrivals.GAMMA, "Gamma, cv 3"),
        (Arrivals.MMPP, "MMPP, 5x bursts"),
    ):
        workload = replace(base, rate_per_s=ARRIVALS_RATE, duration_s=3 * DURATION_S, arrivals=kind, burst_s=1.0)
        served = _served(workload, setting).served
        _cdf(left, [1e3 * each.ttft_s for each in served], label)
        _cdf(right, [1e3 * itl_s for each in served for itl_s in each.itls_s], label)
    for axes, name in ((left, "time to first token"), (right, "inter-token latency")):
        _label(axes, name, "ms", "share of all, %")
        axes.set_xscale("log")
        _plain(axes.xaxis)
    left.legend(fontsize=8)
    return figure


def step_cost(measured: sweep.Sweep) -> Any:
    """Microseconds of the cores by requests that run and by blocks in the pool."""
    figure, (left, right) = _panels("What one step costs in the cores, processor time")
    for axes, points in ((left, measured.by_running), (right, measured.by_pool)):
        sizes = [point.size for point in points]
        axes.plot(
            sizes, [point.scheduler_us for point in points], marker="o", label="scheduler: schedule, settle, update"
        )
        axes.plot(sizes, [point.kv_us for point in points], marker="s", label="KV cache: one plan")
        axes.set_ylim(bottom=0)
    fit = sweep.line([p.size for p in measured.by_running], [p.scheduler_us for p in measured.by_running])
    left.plot(
        [0, measured.by_running[-1].size],
        [fit.fixed, fit.fixed + fit.slope * measured.by_running[-1].size],
        color="grey",
        ls=":",
        label=f"{fit.fixed:.0f} + {fit.slope:.2f} n, R² {fit.r_squared:.3f}",
    )
    _label(left, "by requests that run", "requests", "us")
    _label(right, "by size of the pool, 256 running", "blocks", "us")
    right.set_xscale("log")
    left.legend(fontsize=8)
    return figure


def _served(workload: Workload, setting: Setting) -> Cell:
    cell = Cell(1, setting, seed=workload.seed)
    cell.run(conversations(workload))
    return cell


def _panels(title: str) -> tuple[Any, Any]:
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, axes


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)


def _plain(axis: Any) -> None:
    """Numbers as people write them, at 1, 2 and 5."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def _cdf(axes: Any, values: Sequence[float], label: str) -> None:
    ordered = sorted(values)
    step = max(1, len(ordered) // 500)
    kept = ordered[::step]
    axes.plot(kept, [100 * place / max(1, len(kept) - 1) for place in range(len(kept))], label=label)
