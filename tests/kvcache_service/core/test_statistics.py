"""Hits and queries are counted once, at admission; recomputation apart; each tenant's too."""

import pytest

from kvcache_service.core import statistics
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.statistics import MissReason, PrefixStatistics, TokenCounts
from tests.kvcache_service.rig import Rig, family

A, B = Extras(namespace=b"a" * 16), Extras(namespace=b"b" * 16)


def ran(rig: Rig, handle: int, prompt: list[int], extras: Extras = NO_EXTRAS, **settings: bool) -> None:
    rig.declare(handle, prompt, extras, **settings)
    rig.alloc(handle)
    rig.free(handle)


def test_each_tenant_is_counted_and_all_together():
    rig = Rig(41)
    for handle, extras in enumerate((A, A, B, NO_EXTRAS)):
        ran(rig, handle, family("A", 40), extras)
    counted = rig.manager.statistics
    assert (counted.num_query_tokens, counted.num_hit_tokens) == (160, 32)
    assert counted.by_namespace == {
        A.namespace: TokenCounts(80, 32, 0, 0),
        B.namespace: TokenCounts(40, 0, 0, 0),
        None: TokenCounts(40, 0, 0, 0),
    }


def test_scenario_77_recomputation_counts_apart_for_the_tenant_too():
    rig = Rig(41)
    rig.declare(0, family("A", 40), A)
    rig.alloc(0)
    rig.free(0)
    rig.alloc(0)
    counted = rig.manager.statistics
    assert counted.by_namespace == {A.namespace: TokenCounts(40, 0, 40, 32)}
    assert (counted.num_query_tokens, counted.num_preempted_hit_tokens) == (40, 32)
    assert sum(counted.misses.values()) == 1


def test_a_refused_admission_is_not_counted_until_it_is_admitted():
    rig = Rig(4)
    rig.run(0, family("A", 40))
    rig.declare(1, family("B", 20))
    for _ in range(3):
        rig.admit(1)
    assert rig.manager.statistics.num_query_tokens == 40
    rig.free(0)
    rig.alloc(1)
    assert rig.manager.statistics.num_query_tokens == 60
    assert sum(rig.manager.statistics.misses.values()) == 2


def test_a_request_that_reads_nothing_counts_as_bypassed_and_its_tokens_do_not():
    rig = Rig(41)
    ran(rig, 0, family("A", 40), A, is_bypassing_cache=True)
    assert rig.manager.statistics.misses[MissReason.BYPASSED] == 1
    assert rig.manager.statistics.num_query_tokens == 0
    assert rig.manager.statistics.by_namespace == {}


def test_every_reason_is_there_before_anything_is_counted():
    assert PrefixStatistics().misses == dict.fromkeys(MissReason, 0)


def test_namespaces_are_counted_within_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statistics, "MAX_COUNTED_NAMESPACES", 2)
    counted = PrefixStatistics()
    for namespace in (b"a", b"b", b"a", b"c"):
        counted.count_admission(1, 0, was_preempted=False, namespace=namespace)
    assert list(counted.by_namespace) == [b"a", b"c"]
    assert counted.num_query_tokens == 4
