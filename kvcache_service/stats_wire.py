"""Figures to messages. Decides nothing."""

from kvcache_service import wire
from kvcache_service.core.pools import Pool
from kvcache_service.core.tenant_figures import TenantFigures, tenant_figures
from kvcache_service.core.tenants import Tenants
from kvcache_service.metadata_store import WriterStats
from kvcache_service.prefix_wire import MISS_REASONS
from octavo.kvcache.v1 import kvcache_pb2 as pb


def pool_stats(pool: Pool, tenants: Tenants | None) -> pb.PoolStats:
    """One pool; with `tenants` also what each of them uses of it."""
    counted = pool.manager.statistics
    return pb.PoolStats(
        pool_id=pool.key.pool_id,
        incarnation=pool.key.incarnation,
        figures=wire.figures(pool.manager.figures),
        num_tables=len(pool.manager.running),
        step=pool.step,
        misses=[
            pb.MissCount(reason=MISS_REASONS[reason], num_admissions=number)
            for reason, number in counted.misses.items()
        ],
        num_near_misses=counted.num_near_misses,
        num_pins=len(pool.manager.pins),
        tenants=[_tenant_stats(used, tenants) for used in tenant_figures(pool.manager)] if tenants else [],
    )


def metadata_stats(written: WriterStats) -> pb.MetadataStats:
    """How far Redis is behind."""
    return pb.MetadataStats(
        connected=written.is_connected,
        lag_s=written.lag_s,
        num_pending=written.num_pending,
        num_errors=written.num_errors,
    )


def _tenant_stats(used: TenantFigures, tenants: Tenants) -> pb.TenantStats:
    return pb.TenantStats(
        tenant=tenants.name(used.namespace),
        num_held=used.num_held,
        num_cached=used.num_cached,
        num_pinned=used.num_pinned,
        num_query_tokens=used.counts.num_query_tokens,
        num_hit_tokens=used.counts.num_hit_tokens,
        num_preempted_query_tokens=used.counts.num_preempted_query_tokens,
        num_preempted_hit_tokens=used.counts.num_preempted_hit_tokens,
    )
