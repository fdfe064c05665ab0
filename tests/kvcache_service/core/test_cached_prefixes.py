"""Looking up, pinning, erasing and forgetting prefixes over all pools at once."""

from array import array

import pytest

from kvcache_service.core.cached_prefixes import CachedPrefixes, PinnedPrefix, PoolMatch
from kvcache_service.core.errors import BadPin, NothingCached, PinQuotaExceeded, UnknownPool
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pins import PinName
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.core.request import ANONYMOUS, Identity
from kvcache_service.core.statistics import MissReason
from tests.kvcache_service.core.pools_rig import end, opened, run, start
from tests.kvcache_service.rig import family

A = Extras(namespace=b"a" * 16)
PROMPT = family("A", 40)
NAME = PinName(None, "system")


class Workers:
    """Two pools, w1 and w2."""

    def __init__(self, **settings: bool) -> None:
        self.pools = Pools(**settings)
        self.w1, self.w2 = opened(self.pools, "w1"), opened(self.pools, "w2")
        self.prefixes = CachedPrefixes(self.pools)

    def match(self, prompt: list[int], identity: Identity = ANONYMOUS) -> list[tuple[int, MissReason]]:
        found: list[PoolMatch] = self.prefixes.match(array("I", prompt), identity)
        assert [match.pool_id for match in found] == ["w1", "w2"]
        return [(match.num_cached_tokens, match.miss_reason) for match in found]

    def pin(
        self, name: PinName = NAME, prompt: list[int] = PROMPT, *, ttl_s: float = 60, now_s: float = 0
    ) -> list[PinnedPrefix]:
        return self.prefixes.pin(name, array("I", prompt), NO_EXTRAS, now_s=now_s, ttl_s=ttl_s)

    def num_pinned(self) -> list[int]:
        return [pool.manager.figures.num_pinned for pool in self.pools]


def figures(pool: Pool) -> tuple[int, int, int]:
    used = pool.manager.figures
    return used.num_free, used.num_cached, used.num_pinned


def test_match_tells_what_each_pool_holds_and_why_not_more():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    run(workers.w2, 0, PROMPT[:20])
    assert workers.match(PROMPT) == [(32, MissReason.PARTIAL_BLOCK), (16, MissReason.COLD)]
    assert workers.match(PROMPT[:32]) == [(16, MissReason.PARTIAL_BLOCK)] * 2
    assert workers.match(family("C", 40)) == [(0, MissReason.COLD)] * 2
    assert workers.match(PROMPT, Identity(extras=A)) == [(0, MissReason.OTHER_NAMESPACE)] * 2
    assert workers.match(PROMPT, Identity(is_bypassing_cache=True)) == [(0, MissReason.BYPASSED)] * 2
    assert workers.match([]) == [(0, MissReason.PARTIAL_BLOCK)] * 2


def test_match_counts_committed_blocks_only_and_changes_nothing():
    workers = Workers()
    start(workers.w1, 0, PROMPT)
    workers.w1.manager.declare(1, family("B", 40))
    workers.w1.manager.admit(1)
    before = workers.w1.manager.figures
    assert workers.match(family("B", 40))[0][0] == 0
    assert workers.match(PROMPT)[0][0] == 32
    assert workers.w1.manager.figures == before


def test_match_without_pools_or_without_caching_finds_nothing():
    assert CachedPrefixes(Pools()).match(array("I", PROMPT), ANONYMOUS) == []
    workers = Workers(caching=False)
    run(workers.w1, 0, PROMPT)
    assert workers.match(PROMPT) == [(0, MissReason.BYPASSED)] * 2


def test_a_pin_keeps_the_full_blocks_of_a_prompt_wherever_they_are():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    assert workers.pin() == [PinnedPrefix("w1", 32)]
    assert workers.num_pinned() == [2, 0]
    run(workers.w1, 1, family("C", 288))  # 18 blocks: everything that is not pinned
    assert workers.match(PROMPT)[0] == (32, MissReason.PARTIAL_BLOCK)


def test_a_whole_prompt_is_kept_although_its_last_block_would_be_computed_anew():
    workers = Workers()
    run(workers.w1, 0, PROMPT[:32])
    assert workers.pin(prompt=PROMPT[:32]) == [PinnedPrefix("w1", 32)]


def test_a_pin_ends_when_its_time_is_over():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    workers.pin(ttl_s=60, now_s=100)
    assert workers.prefixes.next_pin_expiry_s == 160
    assert (workers.prefixes.expire_pins(159.9), workers.num_pinned()) == (0, [2, 0])
    assert (workers.prefixes.expire_pins(160.0), workers.num_pinned()) == (1, [0, 0])
    assert [pool.manager.next_pin_expiry_s for pool in workers.pools] == [None, None]
    assert figures(workers.w1) == (20, 2, 0)


def test_the_same_pin_again_starts_its_time_anew():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    for now_s in (0, 50):
        workers.pin(ttl_s=60, now_s=now_s)
    assert workers.prefixes.next_pin_expiry_s == 110
    assert len(workers.w1.manager.pins) == 1


def test_the_same_name_with_another_prompt_keeps_that_one_instead():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    run(workers.w2, 0, family("B", 20))
    workers.pin()
    assert workers.pin(prompt=family("B", 20)) == [PinnedPrefix("w2", 16)]
    assert workers.num_pinned() == [0, 1]


def test_a_pin_is_ended_by_its_name_and_tenant_once():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    workers.pin()
    assert not workers.prefixes.unpin(PinName(b"a" * 16, "system"), now_s=0)
    assert workers.prefixes.unpin(NAME, now_s=0)
    assert not workers.prefixes.unpin(NAME, now_s=0)
    assert workers.num_pinned() == [0, 0]
    workers.pin(ttl_s=1)
    assert not workers.prefixes.unpin(NAME, now_s=1)


def test_what_is_cached_nowhere_cannot_be_kept():
    workers = Workers()
    for prompt in (PROMPT, PROMPT[:10]):
        with pytest.raises(NothingCached):
            workers.pin(prompt=prompt)
    with pytest.raises(NothingCached):
        CachedPrefixes(Pools()).pin(NAME, array("I", PROMPT), NO_EXTRAS, now_s=0, ttl_s=1)


@pytest.mark.parametrize(
    ("pin_id", "prompt", "ttl_s", "field"),
    [
        ("", PROMPT, 1, "pin_id"),
        ("x" * 129, PROMPT, 1, "pin_id"),
        ("p", PROMPT, 0, "ttl"),
        ("p", PROMPT, -1, "ttl"),
        ("p", PROMPT, 86400.5, "ttl"),
        ("p", [], 1, "token_ids"),
    ],
)
def test_a_pin_that_cannot_be_is_refused_by_the_field_that_is_wrong(
    pin_id: str, prompt: list[int], ttl_s: float, field: str
):
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    with pytest.raises(BadPin) as refused:
        workers.pin(PinName(None, pin_id), prompt, ttl_s=ttl_s)
    assert refused.value.field == field
    assert workers.num_pinned() == [0, 0]


def test_a_pin_that_one_pool_has_no_quota_for_is_set_in_none():
    workers = Workers()
    run(workers.w1, 0, family("A", 64))
    run(workers.w2, 0, family("A", 96))
    with pytest.raises(PinQuotaExceeded) as refused:  # 6 blocks of 20; a quarter is 5
        workers.pin(prompt=family("A", 96))
    assert refused.value.metadata["pool_id"] == "w2"
    assert set(refused.value.metadata.values()) >= {"6", "5"}
    assert workers.num_pinned() == [0, 0]
    assert workers.pin(prompt=family("A", 80))


def test_nothing_of_an_erased_namespace_is_found_and_others_keep_theirs():
    workers = Workers()
    for pool in (workers.w1, workers.w2):
        run(pool, 0, PROMPT, A)
        run(pool, 1, PROMPT)
    start(workers.w2, 2, family("B", 40), A)
    workers.prefixes.pin(PinName(A.namespace, "p"), array("I", PROMPT), A, now_s=0, ttl_s=9)
    assert A.namespace is not None
    erased = workers.prefixes.erase(A.namespace)
    assert (erased.num_blocks, erased.num_pins, erased.num_requests) == (6, 2, 1)
    for prompt in (PROMPT, family("B", 40)):
        assert [tokens for tokens, _ in workers.match(prompt, Identity(extras=A))] == [0, 0]
    assert [tokens for tokens, _ in workers.match(PROMPT)] == [32, 32]
    end(workers.w2, 2)
    assert workers.match(family("B", 40), Identity(extras=A))[1][0] == 0
    erased = workers.prefixes.erase(A.namespace)
    assert (erased.num_blocks, erased.num_pins, erased.num_requests) == (0, 0, 0)


def test_reset_of_all_pools_forgets_those_that_are_idle():
    workers = Workers()
    start(workers.w1, 0, PROMPT)
    run(workers.w2, 0, PROMPT)
    assert not workers.prefixes.reset("")
    assert [tokens for tokens, _ in workers.match(PROMPT)] == [32, 0]
    assert not workers.prefixes.reset("w1")
    assert workers.prefixes.reset("w2")
    with pytest.raises(UnknownPool, match="w3"):
        workers.prefixes.reset("w3")


def test_reset_leaves_a_pool_with_a_pin_alone():
    workers = Workers()
    run(workers.w1, 0, PROMPT)
    workers.pin()
    assert not workers.prefixes.reset("w1")
    assert workers.match(PROMPT)[0][0] == 32
    workers.prefixes.unpin(NAME, now_s=0)
    assert workers.prefixes.reset("w1")
    assert workers.match(PROMPT)[0][0] == 0
