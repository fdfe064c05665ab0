"""Figures and metrics of a running service: what blocks are used for, why lookups stopped, what each tenant uses."""

from prometheus_client import CollectorRegistry

from kvcache_service.metrics import PoolCollector
from octavo.columns import pack
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.metrics import render
from tests.kvcache_service.rig import family
from tests.kvcache_service.service import INCARNATION, Service, admit, free

PROMPT = family("A", 40)


def metrics(service: Service) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PoolCollector(service.pools, service.store))
    lines = render("", registry)[0].decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def misses(stats: pb.PoolStats) -> dict[str, int]:
    return {pb.MissReason.Name(miss.reason).removeprefix("MISS_REASON_"): miss.num_admissions for miss in stats.misses}


async def test_figures_of_pools_and_writer(service: Service):
    await service.open()
    await service.plan(1, **admit(0, PROMPT))
    stats = await service.call("GetStats")
    (pool,) = stats.pools
    assert (pool.pool_id, pool.incarnation, pool.num_tables, pool.step) == ("w1", 5, 1, 1)
    assert (pool.figures.num_held, pool.figures.num_query_tokens) == (3, 40)
    assert (stats.kvcache_incarnation, stats.metadata.connected) == (INCARNATION, False)
    assert not pool.tenants


async def test_first_admissions_are_counted_by_why_they_found_no_more(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    await service.run(1, PROMPT, tenant="acme")
    await service.run(2, PROMPT, tenant="other")
    await service.run(3, PROMPT, cache_bypass=True)
    await service.run(4, PROMPT[:20] + family("C", 9), tenant="acme")
    stats = await service.stats()
    assert misses(stats) == {"PARTIAL_BLOCK": 2, "COLD": 1, "EVICTED": 0, "OTHER_NAMESPACE": 1, "BYPASSED": 1}
    assert stats.num_near_misses == 1  # the last one, which shares four tokens of the second block


async def test_a_request_that_comes_again_after_a_preemption_counts_apart_and_has_no_reason(service: Service):
    await service.open()
    await service.plan(1, **admit(0, PROMPT, tenant="acme"))
    await service.plan(2, acked_step=1, frees=free(0))  # its epoch is over, as a preemption ends one
    again = admit(0, PROMPT)["admits"]
    assert (await service.plan(3, admits=again)).grants.admissions[0].num_cached_tokens == 32
    stats = await service.stats(include_tenants=True)
    figures = stats.figures
    assert (figures.num_query_tokens, figures.num_hit_tokens) == (40, 0)
    assert (figures.num_preempted_query_tokens, figures.num_preempted_hit_tokens) == (40, 32)
    assert sum(misses(stats).values()) == 1
    (tenant,) = stats.tenants
    assert (tenant.num_query_tokens, tenant.num_preempted_hit_tokens) == (40, 32)


async def test_each_tenant_is_told_by_its_name_with_what_it_uses(service: Service):
    await service.open()
    await service.run(0, PROMPT, tenant="acme")
    await service.run(1, PROMPT, tenant="other")
    await service.run(2, family("C", 10))
    pin = {"pin_id": "p", "identity": pb.RequestIdentity(tenant="acme"), "token_ids": pack(PROMPT[:16])}
    await service.call("Pin", **pin, ttl={"seconds": 60})
    stats = await service.stats(include_tenants=True)
    used = {tenant.tenant: (tenant.num_held, tenant.num_cached, tenant.num_pinned) for tenant in stats.tenants}
    assert used == {"acme": (1, 1, 1), "other": (0, 2, 0), "": (0, 0, 0)}
    assert {tenant.tenant: tenant.num_query_tokens for tenant in stats.tenants} == {"acme": 40, "other": 40, "": 10}
    assert (stats.num_pins, stats.figures.num_pinned, stats.figures.num_held_by_pins_only) == (1, 1, 1)


async def test_scenario_18_metrics_tell_the_states_of_blocks_and_the_lag(service: Service):
    await service.open()
    await service.plan(1, **admit(0, PROMPT))
    await service.plan(2, acked_step=1, frees=free(0))
    await service.plan(3, acked_step=2, **admit(1, family("B", 16)))
    shown = metrics(service)
    states = {state: shown[f'octavo_kv_blocks{{state="{state}"}}'] for state in ("blank", "cached", "held", "fenced")}
    assert states == {"blank": 17, "cached": 2, "held": 1, "fenced": 0}
    assert shown["octavo_kv_blocks_pinned"] == 0
    assert shown["octavo_kv_metadata_lag_seconds"] > 0
    assert "octavo_kv_metadata_errors_total" in shown


async def test_states_are_disjoint_and_pinned_is_a_part_of_held(service: Service):
    await service.open()
    await service.run(0, PROMPT)
    await service.call("Pin", pin_id="p", token_ids=pack(PROMPT), ttl={"seconds": 60})
    next(iter(service.pools)).manager.fence("reader", [7, 8, 9])
    shown = metrics(service)
    states = {state: shown[f'octavo_kv_blocks{{state="{state}"}}'] for state in ("blank", "cached", "held", "fenced")}
    assert states == {"blank": 15, "cached": 0, "held": 2, "fenced": 3}
    assert (shown["octavo_kv_blocks_pinned"], shown["octavo_kv_pins"]) == (2, 1)
    figures = (await service.stats()).figures
    assert figures.num_free + figures.num_held + figures.num_fenced == figures.num_blocks - 1
    assert figures.num_fenced == 3


async def test_every_label_value_is_there_before_anything_has_happened(service: Service):
    shown = metrics(service)
    reasons = ("partial_block", "cold", "evicted", "other_namespace", "bypassed")
    labelled = [f'octavo_kv_misses_total{{reason="{reason}"}}' for reason in reasons]
    labelled += [f'octavo_kv_blocks{{state="{state}"}}' for state in ("blank", "cached", "held", "fenced")]
    labelled += [
        f'octavo_kv_{what}_tokens_total{{admission="{which}"}}'
        for what in ("query", "hit")
        for which in ("first", "resumed")
    ]
    plain = ["octavo_kv_near_misses_total", "octavo_kv_evictions_total", "octavo_kv_pins_given_way_total"]
    assert {name: shown.get(name) for name in labelled + plain} == dict.fromkeys(labelled + plain, 0.0)


async def test_counters_do_not_go_down_when_a_pool_is_closed(service: Service):
    await service.open(num_blocks=4)
    await service.run(0, PROMPT, tenant="a")
    await service.run(1, family("C", 40), tenant="b")
    await service.call("ClosePool", pool_id="w1", incarnation=5)
    shown = metrics(service)
    assert shown['octavo_kv_query_tokens_total{admission="first"}'] == 80
    assert shown["octavo_kv_evictions_total"] == 2
    assert shown['octavo_kv_misses_total{reason="cold"}'] == 2
    assert shown['octavo_kv_blocks{state="blank"}'] == 0
