"""What a step of Octavo costs outside the model while one request decodes, and how long its worker has nothing to do.

Processor time of every thread of every process comes from the kernel; that of the threads in which the worker
computes is left out, and what they do before and after the forward pass is added from the worker's own clock.
"""

import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

PHASES_METRIC = "octavo_worker_step_duration_seconds"
TIMEOUT_S = 5.0
WORKER = "gpu_worker"
GRPC_THREADS = ("grpc", "event_engine", "lifeguard")  # beginnings of their names; the others of a worker compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The worker's counters at one moment, in seconds."""

    num_steps: float
    sums: Mapping[str, float]  # by phase
    gaps: Mapping[float, float]  # upper bound -> how many gaps were at most as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything that is compared with a later moment."""

    cpu_s: Mapping[str, float]  # by service, the worker without its computing threads
    phases: Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per step, in milliseconds."""

    parts: Mapping[str, float]  # by service, and the worker's phases around the model
    wall: float
    gap_p50: float
    gap_p99: float
    idle: float  # the worker neither prepares nor computes nor samples, on average

    @property
    def outside(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in self.parts.items())
        return f"outside the model {self.outside:.2f} of {self.wall:.2f} ms a step: {parts}"


def now(processes: Sequence[psutil.Process], *, metrics_port: int) -> Moment:
    cpu_s: dict[str, float] = {}
    for process in processes:
        service = _service(process.cmdline(), process.name())
        cpu_s[service] = cpu_s.get(service, 0.0) + sum(_thread_seconds(process.pid, service))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=TIMEOUT_S) as answer:
        return Moment(cpu_s=cpu_s, phases=phases(answer.read().decode()))


def phases(exposition: str) -> Phases:
    """From Prometheus's text format."""
    (family,) = (each for each in text_string_to_metric_families(exposition) if each.name == PHASES_METRIC)
    sums = {each.labels["phase"]: each.value for each in family.samples if each.name.endswith("_sum")}
    gaps = [each for each in family.samples if each.name.endswith("_bucket") and each.labels["phase"] == "gap"]
    return Phases(
        num_steps=max(each.value for each in gaps),
        sums=sums,
        gaps={float(each.labels["le"]): each.value for each in gaps},
    )


def between(before: Moment, after: Moment, *, wall_s: float) -> Cost:
    """The cost of the steps between two moments that lie `wall_s` apart."""
    num_steps = after.phases.num_steps - before.phases.num_steps
    per_step = 1e3 / num_steps
    spent = {name: value - before.phases.sums[name] for name, value in after.phases.sums.items()}
    parts = {name: (value - before.cpu_s.get(name, 0.0)) * per_step for name, value in after.cpu_s.items()}
    parts |= {f"worker's {phase}": spent[phase] * per_step for phase in ("prepare", "sample")}
    gaps = {bound: count - before.phases.gaps[bound] for bound, count in after.phases.gaps.items()}
    busy_s = sum(spent[phase] for phase in ("prepare", "forward", "sample"))
    return Cost(
        parts=parts,
        wall=wall_s * per_step,
        gap_p50=1e3 * quantile(gaps, 0.5),
        gap_p99=1e3 * quantile(gaps, 0.99),
        idle=(wall_s - busy_s) * per_step,
    )


def quantile(counts: Mapping[float, float], share: float) -> float:
    """Of a cumulative histogram, evenly spread within a bucket; the last finite bound if it lies above that."""
    total = max(counts.values())
    below, count_below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= share * total and count > count_below:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (share * total - count_below) / (count - count_below)
        below, count_below = bound, count
    return below


def _service(command: Sequence[str], name: str) -> str:
    """The module after -m, or the program's name."""
    return command[command.index("-m") + 1] if "-m" in command else name


def _thread_seconds(pid: int, service: str) -> Iterator[float]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        is_main = thread.name == str(pid)
        if service == WORKER and not is_main and not (thread / "comm").read_text().startswith(GRPC_THREADS):
            continue
        yield int((thread / "schedstat").read_text().split()[0]) / 1e9
