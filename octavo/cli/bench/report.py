"""Shows the figures of the runs: a table for people, a file for programs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from octavo.cli.bench.figures import Figures, Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run and what it was."""

    load: str  # "8 at once", "4 requests/s"
    figures: Figures
    hit_rate: float | None  # of the server's counters if it has them, else of the answers' usage


def show(runs: Sequence[Run], console: Console) -> None:
    """One column per run."""
    table = Table(title=None, show_lines=False)
    table.add_column("")
    for run in runs:
        table.add_column(run.load, justify="right")
    rows = [_rows(run) for run in runs]
    for index, (name, _) in enumerate(rows[0]):
        table.add_row(name, *(column[index][1] for column in rows))
    console.print(table)


def write(path: Path, setting: dict[str, Any], runs: Sequence[Run]) -> None:
    """Everything in one JSON file."""
    content = {
        **setting,
        "runs": [{"load": run.load, "hit_rate": run.hit_rate, **run.figures.as_json()} for run in runs],
    }
    path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def _rows(run: Run) -> list[tuple[str, str]]:
    figures = run.figures
    rows = [
        ("requests done / failed", f"{figures.num_completed} / {figures.num_failed}"),
        ("duration, s", f"{figures.duration_s:.2f}"),
        ("requests/s", f"{figures.requests_per_s:.2f}"),
        ("output tokens/s", f"{figures.output_tokens_per_s:.1f}"),
        ("prompt + output tokens/s", f"{figures.total_tokens_per_s:.1f}"),
        ("goodput, requests/s", "-" if figures.goodput_per_s is None else f"{figures.goodput_per_s:.2f}"),
        ("prefix hit rate", "-" if run.hit_rate is None else f"{run.hit_rate:.1%}"),
    ]
    for name, latency in (
        ("TTFT", figures.ttft_ms), ("TPOT", figures.tpot_ms), ("ITL", figures.itl_ms), ("E2EL", figures.e2el_ms)
    ):  # fmt: skip
        rows += _latency_rows(name, latency)
    return rows


def _latency_rows(name: str, latency: Latency | None) -> list[tuple[str, str]]:
    if latency is None:
        return [(f"{name} {kind}, ms", "-") for kind in ("mean", "median", "p99", "max")]
    values = {"mean": latency.mean, "median": latency.median, "p99": latency.p99, "max": latency.max}
    return [(f"{name} {kind}, ms", f"{value:.2f}") for kind, value in values.items()]
