"""What Prometheus sees of the pools and of the writer, read when it asks: a step pays nothing for it."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvcache_service.core.pools import Pools
from kvcache_service.metadata_store import MetadataStore


class PoolCollector(Collector):
    """Collects in the event loop, between steps, so that what it reads is of one moment."""

    def __init__(self, pools: Pools, store: MetadataStore) -> None:
        self._pools = pools
        self._store = store

    def collect(self) -> Iterator[Metric]:
        figures = [pool.manager.figures for pool in self._pools]
        blocks = GaugeMetricFamily(
            "octavo_kv_blocks", "Blocks of all pools, by what they are used for", labels=["state"]
        )
        blocks.add_metric(["blank"], sum(pool.num_blank for pool in figures))
        blocks.add_metric(["cached"], sum(pool.num_cached for pool in figures))
        blocks.add_metric(["held"], sum(pool.num_held for pool in figures))
        yield blocks
        written = self._store.stats
        yield GaugeMetricFamily(
            "octavo_kv_metadata_lag_seconds", "Age of the oldest change that Redis does not have", value=written.lag_s
        )
        yield CounterMetricFamily(
            "octavo_kv_metadata_errors", "Writes that Redis did not take", value=written.num_errors
        )
