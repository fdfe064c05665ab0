"""What all pools have counted since the service started, those included that are closed by now: it never goes down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcache_service.core.statistics import MissReason, TokenCounts

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager


@dataclass(slots=True)
class Totals(TokenCounts):
    """Counters of several pools, added up."""

    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))
    num_near_misses: int = 0
    num_evicted_blocks: int = 0
    num_pins_given_way: int = 0

    def add(self, manager: KVCacheManager) -> None:
        """Count what one pool has counted."""
        counted = manager.statistics
        self.num_query_tokens += counted.num_query_tokens
        self.num_hit_tokens += counted.num_hit_tokens
        self.num_preempted_query_tokens += counted.num_preempted_query_tokens
        self.num_preempted_hit_tokens += counted.num_preempted_hit_tokens
        self.num_near_misses += counted.num_near_misses
        self.num_evicted_blocks += manager.pool.num_evicted
        self.num_pins_given_way += manager.pins.num_given_way
        for reason, num_admissions in counted.misses.items():
            self.misses[reason] += num_admissions
