"""What Prometheus sees of the pools and of the writer, read when it asks: a step pays nothing for it.

Every label value is there from the start, so that a rate over it is right from the first event on.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvcache_service.core.pools import Pools
from kvcache_service.core.totals import Totals
from kvcache_service.metadata_store import MetadataStore


class PoolCollector(Collector):
    """Collects in the event loop, between steps, so that what it reads is of one moment."""

    def __init__(self, pools: Pools, store: MetadataStore) -> None:
        self._pools = pools
        self._store = store

    def collect(self) -> Iterator[Metric]:
        yield from self._blocks()
        yield from _counters(self._pools.totals)
        written = self._store.stats
        yield GaugeMetricFamily(
            "octavo_kv_metadata_lag_seconds", "Age of the oldest change that Redis does not have", value=written.lag_s
        )
        yield CounterMetricFamily(
            "octavo_kv_metadata_errors", "Writes that Redis did not take", value=written.num_errors
        )

    def _blocks(self) -> Iterator[Metric]:
        figures = [pool.manager.figures for pool in self._pools]
        blocks = GaugeMetricFamily(
            "octavo_kv_blocks", "Blocks of all pools, by what they are used for", labels=["state"]
        )
        blocks.add_metric(["blank"], sum(pool.num_blank for pool in figures))
        blocks.add_metric(["cached"], sum(pool.num_cached for pool in figures))
        blocks.add_metric(["held"], sum(pool.num_held for pool in figures))
        blocks.add_metric(["fenced"], sum(pool.num_fenced for pool in figures))
        yield blocks
        yield GaugeMetricFamily(
            "octavo_kv_blocks_pinned",
            "Blocks that a pin keeps, a part of the held ones",
            value=sum(pool.num_pinned for pool in figures),
        )
        num_pins = sum(len(pool.manager.pins) for pool in self._pools)
        yield GaugeMetricFamily("octavo_kv_pins", "Pins of all pools", value=num_pins)


def _counters(totals: Totals) -> Iterator[Metric]:
    tokens = {
        "octavo_kv_query_tokens": (totals.num_query_tokens, totals.num_preempted_query_tokens),
        "octavo_kv_hit_tokens": (totals.num_hit_tokens, totals.num_preempted_hit_tokens),
    }
    for name, (num_first, num_resumed) in tokens.items():
        what = "looked up in the prefix cache" if "query" in name else "found there"
        counted = CounterMetricFamily(name, f"Tokens {what}, once per admission", labels=["admission"])
        counted.add_metric(["first"], num_first)
        counted.add_metric(["resumed"], num_resumed)
        yield counted
    misses = CounterMetricFamily(
        "octavo_kv_misses", "First admissions, by why they found no more in the prefix cache", labels=["reason"]
    )
    for reason, num_admissions in totals.misses.items():
        misses.add_metric([reason.value], num_admissions)
    yield misses
    yield CounterMetricFamily(
        "octavo_kv_near_misses",
        "First admissions that shared less than a block with what is cached behind what they found",
        value=totals.num_near_misses,
    )
    yield CounterMetricFamily(
        "octavo_kv_evictions", "Blocks whose prefix was forgotten for another use", value=totals.num_evicted_blocks
    )
    yield CounterMetricFamily(
        "octavo_kv_pins_given_way",
        "Pins that ended because a request could not run otherwise",
        value=totals.num_pins_given_way,
    )
