"""What Prometheus sees of the attached workers, read from their schedulers when it asks: a step pays nothing for it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_service.core.backlog import Queued
from scheduler_service.core.progress import WAITS_FOR
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.metrics import LABELS
from scheduler_service.worker_loop import WorkerLoop
from scheduler_service.workers import Workers

MAX_TENANTS = 20  # that have a time series of their own


class WorkersCollector(Collector):
    """Collects in the event loop, between steps, so that what it reads of a worker is of one moment."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        loops = self._workers.loops
        yield from _by_label(loops)
        yield from _measured(loops, time.monotonic())
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for loop in loops:
                gauge.add_metric(loop.labels, value(loop.core))
            yield gauge
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for loop in loops:
                counter.add_metric(loop.labels, value(loop.core))
            yield counter


def _by_label(loops: Sequence[WorkerLoop]) -> Iterator[Metric]:
    """Those with a label more: reasons, all of them from the start, and the tenants with the longest queues."""
    waiting = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason",
        "Requests without blocks: for capacity, or set aside until something else is there.",
        labels=(*LABELS, "reason"),
    )
    stall = GaugeMetricFamily(
        "octavo_stall_seconds", "How long requests have not moved; 0 = they do.", labels=(*LABELS, "reason")
    )
    stalls = CounterMetricFamily("octavo_stalls", "Times that requests did not move.", labels=(*LABELS, "reason"))
    tenants = GaugeMetricFamily(
        "octavo_tenant_requests_waiting",
        f"Requests without blocks of the {MAX_TENANTS} tenants with the most; all others are one.",
        labels=(*LABELS, "tenant"),
    )
    for loop in loops:
        num_deferred, present = loop.core.num_set_aside, loop.watchdog.stall
        waiting.add_metric((*loop.labels, "capacity"), loop.core.num_waiting - num_deferred)
        waiting.add_metric((*loop.labels, "deferred"), num_deferred)
        for reason in WAITS_FOR:
            is_present = present is not None and present.waits_for == reason
            stall.add_metric((*loop.labels, reason), present.duration_s if present is not None and is_present else 0.0)
            stalls.add_metric((*loop.labels, reason), loop.watchdog.num_stalls[reason])
        for tenant, num_requests in _longest(loop.core.backlog.by_tenant):
            tenants.add_metric((*loop.labels, tenant), num_requests)
    yield from (waiting, stall, stalls, tenants)


def _measured(loops: Sequence[WorkerLoop], now_s: float) -> Iterator[Metric]:
    """What is absent until it was measured."""
    for name, text, value in _MEASURED:
        gauge = GaugeMetricFamily(name, text, labels=LABELS)
        for loop in loops:
            if (measured := value(loop.core, now_s)) is not None:
                gauge.add_metric(loop.labels, measured)
        yield gauge


def _longest(queues: Mapping[str, Queued]) -> list[tuple[str, int]]:
    """The tenants with the most requests; those beyond MAX_TENANTS as "others"."""
    counts = sorted(((name, queued.num_requests) for name, queued in queues.items()), key=lambda count: -count[1])
    num_others = sum(num for _, num in counts[MAX_TENANTS:])
    return [*counts[:MAX_TENANTS], *([("others", num_others)] if num_others else [])]


def _usage(core: Scheduler) -> float:
    pool = core.figures.pool
    return pool.num_held / (pool.num_blocks - 1) if pool.num_blocks > 1 else 0.0


_Measured = Callable[[Scheduler, float], float | None]
_MEASURED: tuple[tuple[str, str, _Measured], ...] = (
    (
        "octavo_queue_drain_requests_per_second",
        "Requests that leave the queue while there is one.",
        lambda core, now_s: core.drain.requests_per_s(now_s),
    ),
    (
        "octavo_prefill_tokens_per_second",
        "Tokens that a well-filled step computes.",
        lambda core, _: core.drain.tokens_per_s,
    ),
    (
        "octavo_predicted_ttft_seconds",
        "Time to the first token of a short request behind all others, at the earliest.",
        lambda core, now_s: core.predicted_ttft_s(now_s),
    ),
)
_GAUGES = (
    ("vllm:num_requests_running", "Requests with blocks.", lambda core: len(core.running)),
    ("vllm:num_requests_waiting", "Requests without.", lambda core: core.num_waiting),
    ("octavo_queued_tokens", "Tokens to be computed for those.", lambda core: core.backlog.total.num_tokens),
    ("vllm:kv_cache_usage_perc", "Share of the blocks that requests hold, 0 to 1.", _usage),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up at first admissions.", lambda core: core.figures.num_query_tokens),
    ("vllm:prefix_cache_hits", "Tokens of those that were hits.", lambda core: core.figures.num_hit_tokens),
    ("vllm:num_preemptions", "Requests that lost their blocks.", lambda core: core.figures.num_preemptions),
    ("vllm:generation_tokens", "Tokens generated.", lambda core: core.figures.num_output_tokens),
)
