"""Prefixes kept from being evicted for a time: who may keep how much, when a pin ends, and to whom it gives way."""

import pytest

from kvcache_service.core.errors import PinQuotaExceeded
from kvcache_service.core.events import PinEnd, PinEnded, PinSet
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.pins import MAX_NUM_PINS, PinName
from kvcache_service.core.plan import Admits, Declaration, Erased, Grants, Grows, Plan
from tests.kvcache_service.rig import Rig, family

TENANT, OTHER = b"t" * 16, b"o" * 16


def pin(rig: Rig, pin_id: str, token_ids: list[int], *, namespace: bytes | None = None, expires_s: float = 10.0) -> int:
    keys = rig.manager.prefix_keys(token_ids, Extras(namespace=namespace))
    return rig.manager.pin(PinName(namespace, pin_id), keys, expires_s=expires_s)


def cache(rig: Rig, handle: int, token_ids: list[int], namespace: bytes | None = None) -> None:
    """Run and release."""
    rig.declare(handle, token_ids, Extras(namespace=namespace))
    rig.alloc(handle)
    rig.free(handle)


def pinned(num_blocks: int = 17, *, expires_s: float = 10.0) -> Rig:
    """A(64) is pinned: blocks 1 to 4 of 16, which is the share of a tenant."""
    rig = Rig(num_blocks)
    cache(rig, 0, family("A", 64))
    assert pin(rig, "a", family("A", 64), expires_s=expires_s) == 4
    return rig


def admit(rig: Rig, handle: int, token_ids: list[int]) -> Grants:
    rig.manager.step += 1
    return rig.plan(
        Plan(
            step=rig.manager.step,
            token_budget=10_000,
            max_admissions=1,
            declares=[Declaration(handle=handle, token_ids=token_ids)],
            admits=Admits(handles=[handle], num_known_tokens=[len(token_ids)], num_watermark_blocks=[0]),
        )
    )


def test_a_pinned_prefix_is_held_and_is_hit_after_everything_else_was_evicted():
    rig = pinned()
    figures = rig.manager.figures
    assert (figures.num_held, figures.num_pinned, figures.num_held_by_pins_only) == (4, 4, 4)
    for handle in range(1, 4):
        cache(rig, handle, family("BCD"[handle - 1], 12 * 16))
    assert rig.hit(family("A", 65)) == ([1, 2, 3, 4], 64)


def test_blocks_that_requests_hold_too_are_not_held_by_pins_only():
    rig = pinned()
    rig.run(1, family("A", 33))
    figures = rig.manager.figures
    assert (figures.num_held, figures.num_pinned, figures.num_held_by_pins_only) == (5, 4, 2)
    assert rig.pool.ref_cnt(1) == 2


def test_only_what_is_committed_is_kept():
    rig = Rig(17)
    rig.declare(0, family("A", 64))
    rig.admit(0, 32)
    rig.ack(0)
    rig.manager.grow(0, 32)
    assert pin(rig, "a", family("A", 64)) == 2


def test_an_ended_pin_leaves_its_prefix_cached_and_evictable_deepest_block_first():
    rig = pinned()
    assert rig.manager.unpin(PinName(None, "a"))
    assert rig.free_order[-4:] == [4, 3, 2, 1]
    assert rig.manager.figures.num_cached == 4
    assert not rig.manager.unpin(PinName(None, "a"))


def test_a_pin_ends_when_its_time_is_over():
    rig = pinned(expires_s=10.0)
    assert rig.manager.expire_pins(9.9) == 0
    assert rig.manager.next_pin_expiry_s == 10.0
    assert rig.manager.expire_pins(10.0) == 1
    assert rig.manager.figures.num_held == 0
    assert rig.pool.num_pinned == len(rig.manager.pins) == 0


def test_the_same_pin_again_starts_the_time_anew():
    rig = pinned(expires_s=10.0)
    assert pin(rig, "a", family("A", 64), expires_s=20.0) == 4
    assert rig.manager.expire_pins(10.0) == 0
    assert rig.manager.expire_pins(20.0) == 1


def test_the_same_name_for_another_prompt_ends_the_older_pin():
    rig = pinned()
    cache(rig, 1, family("B", 48))
    assert pin(rig, "a", family("B", 48)) == 3
    assert rig.manager.figures.num_pinned == 3
    assert rig.free_order[-4:] == [4, 3, 2, 1]


def test_a_tenant_keeps_no_more_than_its_share_and_a_refusal_changes_nothing():
    rig = pinned()
    cache(rig, 1, family("B", 16))
    before = (rig.manager.figures, rig.free_order)
    with pytest.raises(PinQuotaExceeded, match="would keep 5 blocks of this pool; the limit is 4"):
        pin(rig, "b", family("B", 16))
    assert (rig.manager.figures, rig.free_order) == before


def test_blocks_that_two_pins_of_a_tenant_share_count_once():
    rig = pinned()
    assert pin(rig, "b", family("A", 32)) == 2
    assert rig.manager.figures.num_pinned == 4
    assert rig.manager.unpin(PinName(None, "a"))
    assert rig.manager.figures.num_pinned == 2


def test_all_tenants_together_keep_no_more_than_half():
    rig = pinned()
    for handle, (name, namespace) in enumerate((("B", TENANT), ("C", OTHER)), 1):
        cache(rig, handle, family(name, 64), namespace)
    assert pin(rig, "b", family("B", 64), namespace=TENANT) == 4
    with pytest.raises(PinQuotaExceeded, match="all pins would keep 9 blocks of this pool; the limit is 8"):
        pin(rig, "c", family("C", 16), namespace=OTHER)


def test_a_tenant_has_a_limited_number_of_pins():
    rig = pinned()
    for number in range(MAX_NUM_PINS - 1):
        pin(rig, f"p{number}", family("A", 16))
    with pytest.raises(PinQuotaExceeded, match="the tenant has 1024 pins"):
        pin(rig, "one more", family("A", 16))


def test_pins_of_two_tenants_may_have_the_same_id():
    rig = pinned()
    cache(rig, 1, family("A", 64), TENANT)
    pin(rig, "a", family("A", 64), namespace=TENANT)
    assert rig.manager.unpin(PinName(TENANT, "a"))
    assert rig.manager.figures.num_pinned == 4


def test_a_pin_gives_way_to_a_request_that_could_not_start_otherwise():
    rig = pinned()
    grants = admit(rig, 1, family("B", 16 * 16))
    assert len(grants.admissions[0].block_ids) == 16
    assert (grants.figures.num_pinned, rig.manager.pins.num_given_way) == (0, 1)


def test_a_pin_does_not_give_way_while_another_request_runs():
    rig = pinned()
    rig.run(1, family("C", 16))
    grants = admit(rig, 2, family("B", 16 * 12))
    assert grants.admissions[0].num_granted_tokens == 0
    assert grants.figures.num_pinned == 4


def test_pins_do_not_give_way_for_what_would_not_fit_into_the_empty_pool():
    rig = pinned()
    grants = admit(rig, 1, family("B", 16 * 17))
    assert (grants.admissions[0].num_granted_tokens, grants.figures.num_pinned) == (0, 4)


def test_the_pin_that_ends_first_gives_way_first_and_no_more_than_needed():
    rig = Rig(17)
    for handle, (name, expires_s) in enumerate((("A", 30.0), ("B", 10.0), ("C", 20.0))):
        cache(rig, handle, family(name, 16))
        pin(rig, name, family(name, 16), expires_s=expires_s)
    admit(rig, 9, family("D", 16 * 15))
    assert [rig.manager.pins.get(PinName(None, name)) is None for name in "ABC"] == [False, True, True]


def test_hit_blocks_that_a_pin_keeps_are_not_taken_from_the_request_that_it_gives_way_to():
    rig = pinned()
    admission = admit(rig, 1, family("A", 64) + family("B", 12 * 16)).admissions[0]
    assert (admission.num_cached_tokens, len(admission.block_ids)) == (64, 16)
    assert rig.manager.figures.num_pinned == 4


def test_a_pin_gives_way_to_a_request_that_runs_alone_before_it_is_its_own_victim():
    rig = pinned()
    rig.run(1, family("B", 12 * 16))
    rig.manager.step += 1
    grows = Grows(handles=[1], victims=[1])
    grants = rig.plan(Plan(step=rig.manager.step, token_budget=10, grows=grows))
    assert (list(grants.grow_num_tokens), list(grants.preempted_handles)) == ([1], [])
    assert grants.figures.num_pinned == 0


def test_victims_are_taken_before_pins():
    rig = pinned()
    rig.run(1, family("B", 6 * 16))
    rig.run(2, family("C", 6 * 16))
    rig.manager.step += 1
    grows = Grows(handles=[1], victims=[2, 1])
    grants = rig.plan(Plan(step=rig.manager.step, token_budget=10, grows=grows))
    assert (list(grants.preempted_handles), grants.figures.num_pinned) == ([2], 4)


def test_a_reset_is_refused_while_a_pin_holds_a_block():
    rig = pinned()
    assert not rig.manager.reset_prefix_cache()
    rig.manager.unpin(PinName(None, "a"))
    assert rig.manager.reset_prefix_cache()


def test_events_tell_when_a_pin_is_set_and_why_it_ended():
    rig = pinned()
    keys = rig.manager.prefix_keys(family("A", 64))
    pin(rig, "a", family("A", 64))  # the same again: nothing to tell
    rig.manager.expire_pins(11.0)
    assert rig.manager.take_events()[-2:] == [
        PinSet(namespace=None, pin_id="a", keys=keys, expires_s=10.0),
        PinEnded(namespace=None, pin_id="a", reason=PinEnd.EXPIRED),
    ]


def test_pins_that_are_set_again_and_again_do_not_pile_up():
    rig = pinned()
    for number in range(5000):
        pin(rig, "a", family("A", 64), expires_s=100.0 + number)
    assert len(rig.manager.pins._by_expiry) < 3000
    assert rig.manager.expire_pins(5098.0) == 0
    assert rig.manager.expire_pins(5099.0) == 1


def test_an_erased_namespace_is_forgotten_its_pins_end_and_others_keep_theirs():
    rig = Rig(17)
    cache(rig, 0, family("A", 32), TENANT)
    cache(rig, 1, family("A", 32), OTHER)
    pin(rig, "a", family("A", 16), namespace=TENANT)
    assert rig.manager.erase_namespace(TENANT) == Erased(num_blocks=2, num_pins=1)
    assert rig.hit(family("A", 33), Extras(namespace=TENANT)) == ([], 0)
    assert rig.hit(family("A", 33), Extras(namespace=OTHER))[1] == 32
    assert rig.free_order[:2] == [1, 2]
    assert rig.manager.erase_namespace(TENANT) == Erased()


def test_a_request_whose_namespace_is_erased_runs_on_and_publishes_nothing_more():
    rig = Rig(17)
    rig.declare(0, family("A", 64), Extras(namespace=TENANT))
    rig.admit(0, 32)
    rig.ack(0)
    assert rig.manager.erase_namespace(TENANT).num_requests == 1
    rig.alloc(0, 32)
    assert rig.manager.request(0).num_computed_tokens == 64
    assert rig.hit(family("A", 65), Extras(namespace=TENANT)) == ([], 0)


def test_a_request_that_starts_after_the_erasure_publishes_anew():
    rig = Rig(17)
    rig.declare(0, family("A", 32), Extras(namespace=TENANT))
    rig.manager.erase_namespace(TENANT)
    rig.alloc(0)
    assert rig.hit(family("A", 33), Extras(namespace=TENANT))[1] == 32


def test_reservations_of_an_erased_namespace_are_withdrawn():
    rig = Rig(17)
    rig.declare(0, family("A", 32), Extras(namespace=TENANT))
    rig.admit(0)
    assert rig.manager.erase_namespace(TENANT) == Erased(num_blocks=0, num_pins=0, num_requests=1)
    rig.ack(0)
    assert rig.hit(family("A", 33), Extras(namespace=TENANT)) == ([], 0)
    assert rig.manager.take_events() == []


def test_a_public_prefix_outlives_the_erasure_of_a_tenant_that_used_it():
    rig = Rig(17)
    extras = Extras(namespace=TENANT, namespace_block=1)
    rig.declare(0, family("A", 32), extras)
    rig.alloc(0)
    rig.free(0)
    assert rig.manager.erase_namespace(TENANT).num_blocks == 1
    assert rig.hit(family("A", 33), extras) == ([1], 16)
