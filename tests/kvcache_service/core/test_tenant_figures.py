"""What each tenant uses of a pool."""

from array import array

from kvcache_service.core.cached_prefixes import CachedPrefixes
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.pools import Pools
from kvcache_service.core.statistics import TokenCounts
from kvcache_service.core.tenant_figures import TenantFigures, tenant_figures
from kvcache_service.core.totals import Totals
from tests.kvcache_service.core.pools_rig import opened, run, start
from tests.kvcache_service.rig import family

A, B = Extras(namespace=b"a" * 16), Extras(namespace=b"b" * 16)
NOTHING = TokenCounts()


def test_blocks_and_tokens_of_each_tenant_shared_blocks_once():
    pools = Pools()
    pool = opened(pools, "w1", num_blocks=41)
    run(pool, 0, family("A", 64), A)
    run(pool, 1, family("C", 32))
    start(pool, 2, family("A", 32) + family("D", 5), A)  # 2 of the cached blocks, and a new one
    start(pool, 3, family("A", 32) + family("E", 5), A)  # the same 2, and another
    CachedPrefixes(pools).pin(PinName(A.namespace, "p"), array("I", family("A", 48)), A, now_s=0, ttl_s=1)
    assert tenant_figures(pool.manager) == [
        TenantFigures(namespace=None, num_held=0, num_cached=2, num_pinned=0, counts=TokenCounts(32, 0, 0, 0)),
        TenantFigures(namespace=A.namespace, num_held=5, num_cached=1, num_pinned=3, counts=TokenCounts(138, 64, 0, 0)),
    ]


def test_a_tenant_that_uses_nothing_is_left_out():
    pool = opened(Pools(), "w1")
    assert tenant_figures(pool.manager) == []
    run(pool, 0, family("A", 5), B)
    (used,) = tenant_figures(pool.manager)
    assert used == TenantFigures(
        namespace=B.namespace, num_held=0, num_cached=0, num_pinned=0, counts=TokenCounts(5, 0, 0, 0)
    )


def test_held_and_cached_of_all_tenants_are_those_of_the_pool():
    pool = opened(Pools(), "w1", num_blocks=41)
    for handle, extras in enumerate((A, B, NO_EXTRAS)):
        run(pool, 2 * handle, family("A", 40), extras)
        start(pool, 2 * handle + 1, family("B", 40), extras)
    used = tenant_figures(pool.manager)
    assert sum(tenant.num_held for tenant in used) == pool.manager.figures.num_held == 9
    assert sum(tenant.num_cached for tenant in used) == pool.manager.figures.num_cached == 6


def test_totals_never_go_down_when_a_pool_is_over():
    pools = Pools()
    pool = opened(pools, "w1", num_blocks=5)
    run(pool, 0, family("A", 64))
    run(pool, 1, family("B", 64))
    totals = pools.totals
    assert (totals.num_query_tokens, totals.num_evicted_blocks, sum(totals.misses.values())) == (128, 4, 2)
    opened(pools, "w1", incarnation=6)
    assert pools.totals == totals
    pools.close("w1", 6)
    assert pools.totals == totals
    run(opened(pools, "w2"), 0, family("A", 64))
    assert pools.totals.num_query_tokens == 192
    assert Pools().totals == Totals()
