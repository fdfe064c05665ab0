"""Why a lookup found no more, and near misses."""

from kvcache_service.core.hash_extras import NO_EXTRAS, Adapter, Extras
from kvcache_service.core.plan import Admission
from kvcache_service.core.statistics import MissReason
from tests.kvcache_service.rig import Rig, family

A, B = Extras(namespace=b"a" * 16), Extras(namespace=b"b" * 16)
PROMPT = family("A", 40)


class Asking:
    """Admissions one after the other; each frees its blocks again."""

    def __init__(self, num_blocks: int = 41, **settings: bool) -> None:
        self.rig = Rig(num_blocks, **settings)
        self._num = 0

    def admit(self, prompt: list[int], extras: Extras = NO_EXTRAS, **settings: bool) -> Admission:
        handle, self._num = self._num, self._num + 1
        self.rig.declare(handle, prompt, extras, **settings)
        admission = self.rig.admit(handle)
        self.rig.ack(handle)
        self.rig.free(handle)
        return admission

    def reason(self, prompt: list[int], extras: Extras = NO_EXTRAS, **settings: bool) -> MissReason | None:
        return self.admit(prompt, extras, **settings).miss_reason

    @property
    def num_near_misses(self) -> int:
        return self.rig.manager.statistics.num_near_misses


def test_a_prompt_that_nobody_had_is_cold_and_one_that_all_is_found_of_ends_with_a_partial_block():
    asking = Asking()
    assert [asking.reason(PROMPT) for _ in range(2)] == [MissReason.COLD, MissReason.PARTIAL_BLOCK]
    assert asking.reason(PROMPT[:32]) is MissReason.PARTIAL_BLOCK  # the last block is computed anew for its logits
    assert asking.reason(PROMPT[:32] + family("C", 32)) is MissReason.COLD
    assert asking.reason(PROMPT[:10]) is MissReason.PARTIAL_BLOCK


def test_a_prompt_that_had_to_go_was_evicted():
    asking = Asking(4)
    asking.admit(PROMPT)
    asking.admit(family("C", 40))
    assert asking.reason(PROMPT) is MissReason.EVICTED


def test_what_another_tenant_has_is_in_another_namespace():
    asking = Asking()
    asking.admit(PROMPT, A)
    assert asking.reason(PROMPT, B) is MissReason.OTHER_NAMESPACE
    assert asking.reason(family("C", 40), B) is MissReason.COLD


def test_what_is_here_outside_the_namespaces_or_without_the_salt_is_here_for_others():
    asking = Asking()
    asking.admit(PROMPT)
    assert asking.reason(PROMPT, A) is MissReason.OTHER_NAMESPACE
    asking = Asking()
    asking.admit(PROMPT, A)
    salted = Extras(namespace=A.namespace, salt="s")
    assert asking.reason(PROMPT, salted) is MissReason.OTHER_NAMESPACE


def test_a_later_block_that_only_others_have_is_here_for_others_too():
    asking = Asking()
    asking.admit([*PROMPT[:16], 1], A)
    asking.admit(PROMPT, B)
    assert asking.reason(PROMPT, A) is MissReason.OTHER_NAMESPACE
    assert asking.reason(PROMPT, A) is MissReason.PARTIAL_BLOCK


def test_a_request_outside_the_namespaces_does_not_look_into_them():
    asking = Asking()
    asking.admit(PROMPT, A)
    assert asking.reason(PROMPT) is MissReason.COLD


def test_without_cache_everything_is_bypassed():
    assert Asking(caching=False).reason(PROMPT) is MissReason.BYPASSED
    assert Asking().reason(PROMPT, is_bypassing_cache=True) is MissReason.BYPASSED


def test_admissions_are_counted_by_reason():
    asking = Asking()
    for extras in (A, A, B):
        asking.admit(PROMPT, extras)
    counted = {reason: number for reason, number in asking.rig.manager.statistics.misses.items() if number}
    assert counted == {MissReason.COLD: 1, MissReason.PARTIAL_BLOCK: 1, MissReason.OTHER_NAMESPACE: 1}


def test_a_prefix_shared_for_less_than_a_block_is_a_near_miss():
    asking = Asking()
    asking.admit(PROMPT)
    assert asking.num_near_misses == 0
    asking.admit(PROMPT[:20] + family("C", 20))  # hits one block, agrees with 4 tokens of the next
    assert asking.num_near_misses == 1
    asking.admit(PROMPT[:7] + family("D", 20))
    assert asking.num_near_misses == 2
    asking.admit(family("E", 20))
    asking.admit(PROMPT[:16] + family("F", 20))
    assert asking.num_near_misses == 2


def test_a_block_that_is_cached_whole_is_no_near_miss():
    asking = Asking()
    asking.admit(PROMPT[:32])
    asking.admit(PROMPT[:32])  # the second block is found, and computed anew for its logits
    assert asking.num_near_misses == 0


def test_nobody_nearly_hits_what_is_not_theirs():
    asking = Asking()
    asking.admit(PROMPT, A)
    asking.admit(PROMPT[:20] + family("C", 20), B)
    asking.admit(PROMPT[:20] + family("D", 20), Extras(namespace=A.namespace, salt="s"))
    asking.admit(PROMPT[:20] + family("E", 20), Extras(adapter=Adapter(name="x", content_digest=b"1")))
    assert asking.num_near_misses == 0
