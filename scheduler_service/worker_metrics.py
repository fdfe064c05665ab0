"""What Prometheus sees of the attached workers, read from their schedulers when it asks: a step pays nothing for it."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_service.core.scheduler import Scheduler
from scheduler_service.metrics import LABELS
from scheduler_service.workers import Workers


class WorkersCollector(Collector):
    """Collects in the event loop, between steps, so that what it reads of a worker is of one moment."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        loops = self._workers.loops
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


def _usage(core: Scheduler) -> float:
    pool = core.figures.pool
    return pool.num_held / (pool.num_blocks - 1) if pool.num_blocks > 1 else 0.0


_GAUGES = (
    ("vllm:num_requests_running", "Requests with blocks.", lambda core: len(core.running)),
    ("vllm:num_requests_waiting", "Requests without.", lambda core: core.num_waiting),
    ("vllm:kv_cache_usage_perc", "Share of the blocks that requests hold, 0 to 1.", _usage),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up at first admissions.", lambda core: core.figures.num_query_tokens),
    ("vllm:prefix_cache_hits", "Tokens of those that were hits.", lambda core: core.figures.num_hit_tokens),
    ("vllm:num_preemptions", "Requests that lost their blocks.", lambda core: core.figures.num_preemptions),
    ("vllm:generation_tokens", "Tokens generated.", lambda core: core.figures.num_output_tokens),
)
