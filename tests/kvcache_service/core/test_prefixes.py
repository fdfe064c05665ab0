"""Who gets which blocks when prompts share prefixes. Scenarios are those of docs/scenarios.md."""

import pytest

from kvcache_service.core.errors import NothingToAllocate
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, BlocksStored
from kvcache_service.core.plan import AdmissionStatus
from kvcache_service.core.statistics import MissReason
from tests.kvcache_service.rig import Rig, family


@pytest.fixture
def after_2() -> Rig:
    rig = Rig(11)
    assert rig.hit(family("A", 48) + family("B", 7)) == ([], 0)
    assert rig.run(0, family("A", 48) + family("B", 7)) == [1, 2, 3, 4]
    return rig


@pytest.fixture
def after_4(after_2: Rig) -> Rig:
    after_2.run(1, family("A", 48) + family("C", 5))
    after_2.free(0)
    after_2.free(1)
    return after_2


def test_scenario_2_full_blocks_are_hashed_and_the_partial_one_is_not(after_2: Rig):
    assert [after_2.is_hashed(block_id) for block_id in (1, 2, 3, 4)] == [True, True, True, False]
    assert [after_2.pool.ref_cnt(block_id) for block_id in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert len(after_2.manager.request(0).keys) == 3


def test_scenario_3_a_second_request_starts_where_the_shared_prefix_ends(after_2: Rig):
    assert after_2.hit(family("A", 48) + family("C", 5)) == ([1, 2, 3], 48)
    assert after_2.run(1, family("A", 48) + family("C", 5)) == [5]
    assert [after_2.pool.ref_cnt(block_id) for block_id in (1, 2, 3)] == [2, 2, 2]
    assert after_2.pool.num_free == 5


def test_scenario_4_unhashed_blocks_are_freed_to_the_head_hashed_ones_deepest_first_to_the_tail(after_4: Rig):
    assert after_4.pool.num_free == 10
    assert after_4.free_order == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_scenario_7_a_block_that_is_given_out_again_loses_its_hash():
    rig = Rig(2)
    rig.run(0, family("A", 16))
    rig.free(0)
    assert rig.run(1, family("A", 15)) == [1]
    assert not rig.is_hashed(1)
    assert rig.hit(family("A", 17)) == ([], 0)


def test_scenario_8_a_hit_block_is_never_the_one_that_is_evicted():
    rig = Rig(3)
    assert (rig.run(0, family("A", 16)), rig.run(1, family("C", 16))) == ([1], [2])
    rig.free(0)
    rig.free(1)
    assert rig.hit(family("A", 16) + family("C", 16)) == ([1], 16)
    assert rig.run(2, family("A", 16) + family("C", 16)) == [2]


def test_scenario_10_a_fully_cached_prompt_recomputes_its_last_block():
    rig = Rig(5)
    assert (rig.run(0, family("A", 32)), rig.run(1, family("C", 32))) == ([1, 2], [3, 4])
    rig.free(0)
    rig.free(1)
    assert rig.free_order == [2, 1, 4, 3]
    assert rig.hit(family("A", 32)) == ([1], 16)
    assert rig.run(2, family("A", 32)) == [2]
    assert rig.free_order == [4, 3]
    rig.free(2)
    assert rig.free_order == [4, 3, 2, 1]
    assert rig.hit(family("A", 33)) == ([1, 2], 32)
    assert rig.hit(family("C", 33)) == ([3, 4], 32)


def test_scenario_14_with_caching_off_nothing_is_shared_and_too_much_is_refused():
    rig = Rig(5, block_size=4, caching=False)
    assert len(rig.run(0, family("A", 10))) == 3
    rig.free(0)
    assert rig.hit(family("A", 16)) == ([], 0)
    assert len(rig.run(1, family("A", 16))) == 4
    rig.append(1, family("B", 4))
    assert rig.manager.grow(1, 4).new_block_ids is None
    assert not any(rig.is_hashed(block_id) for block_id in range(5))


def test_scenario_16_a_reset_needs_every_block_free():
    rig = Rig(11)
    rig.run(0, family("A", 32))
    rig.run(1, family("C", 32))
    assert not rig.manager.reset_prefix_cache()
    assert rig.hit(family("A", 33)) == ([1, 2], 32)
    rig.free(0)
    rig.free(1)
    assert rig.manager.reset_prefix_cache()
    assert not any(rig.is_hashed(block_id) for block_id in range(11))
    assert len(rig.pool.cache) == 0
    assert rig.manager.figures.num_cached == 0


def test_scenario_17_the_second_release_does_nothing(after_2: Rig):
    epoch = after_2.manager.request(0).epoch
    after_2.manager.free(0, epoch)
    assert after_2.pool.num_free == 10
    after_2.manager.free(0, epoch)
    assert after_2.pool.num_free == 10
    assert [after_2.pool.ref_cnt(block_id) for block_id in range(11)] == [0] * 11


def test_scenario_17_a_late_release_does_not_touch_the_next_epoch(after_2: Rig):
    after_2.free(0)
    after_2.alloc(0)
    after_2.manager.free(0, 0)
    assert len(after_2.manager.block_table(0)) == 4


def test_scenario_18_figures_tell_cached_from_blank(after_4: Rig):
    figures = after_4.manager.figures
    assert (figures.usage, figures.num_free, figures.num_held) == (0.0, 10, 0)
    assert (figures.num_cached, figures.num_blank) == (3, 7)


@pytest.mark.parametrize(
    ("num_tokens", "hit"),
    [(16, 0), (17, 16), (63, 48), (64, 48), (65, 64), (80, 64)],
)
def test_scenario_20_at_least_one_token_is_left_to_compute(num_tokens: int, hit: int):
    rig = Rig(11)
    rig.run(0, family("A", 64))
    assert rig.hit((family("A", 64) + family("Z", 16))[:num_tokens])[1] == hit


def test_scenario_21_a_block_gets_its_hash_when_it_fills():
    rig = Rig(11)
    rig.declare(0, family("A", 15))
    assert len(rig.manager.request(0).keys) == 0
    rig.append(0, [7])
    assert len(rig.manager.request(0).keys) == 1


def test_scenario_32_only_a_full_block_of_a_growing_request_is_hashed():
    rig = Rig(11)
    rig.run(0, family("A", 55))
    rig.append(0, family("O", 4))
    assert rig.alloc(0, 4) == []
    assert not rig.is_hashed(4)
    rig.append(0, family("P", 19))
    assert rig.alloc(0, 19) == [5]
    assert [rig.is_hashed(block_id) for block_id in (4, 5)] == [True, False]


def test_scenario_34_lookahead_takes_room_that_is_not_published():
    rig = Rig(11)
    rig.declare(0, family("A", 16))
    assert rig.alloc(0, num_lookahead_tokens=3) == [1, 2]
    assert [rig.is_hashed(block_id) for block_id in (1, 2)] == [True, False]


def test_scenario_34_no_room_beyond_the_model_length():
    rig = Rig(11, max_model_len=16)
    rig.declare(0, family("A", 16))
    assert rig.alloc(0, num_lookahead_tokens=3) == [1]


def test_scenario_36_an_advance_by_nothing_is_an_error_and_changes_nothing(after_2: Rig):
    before = (after_2.free_order, after_2.manager.block_table(0), after_2.manager.figures)
    with pytest.raises(NothingToAllocate):
        after_2.manager.grow(0, 0)
    after_2.declare(1, family("C", 5))
    with pytest.raises(NothingToAllocate):
        after_2.manager.admit(1, 0)
    assert (after_2.free_order, after_2.manager.block_table(0), after_2.manager.figures) == before


def test_scenario_37_events_of_storing_evicting_and_clearing():
    rig = Rig(4)
    rig.run(0, family("A", 48))
    hashes = tuple(rig.hash(block_id) for block_id in (1, 2, 3))
    (stored,) = rig.manager.take_events()
    assert isinstance(stored, BlocksStored)
    assert (stored.block_hashes, list(stored.token_ids), stored.parent_hash) == (hashes, family("A", 48), None)
    rig.free(0)
    rig.run(1, family("C", 48))
    *removed, stored = rig.manager.take_events()
    assert [event.block_hash for event in removed if isinstance(event, BlockRemoved)] == list(reversed(hashes))
    assert isinstance(stored, BlocksStored)
    assert len(stored.block_hashes) == 3
    rig.free(1)
    rig.manager.reset_prefix_cache()
    assert rig.manager.take_events() == [AllBlocksCleared()]


def test_scenario_38_a_later_event_names_the_parent_of_its_first_block():
    rig = Rig(11)
    rig.run(0, family("A", 32))
    rig.append(0, family("B", 32))
    rig.alloc(0, 32)
    first, second = rig.manager.take_events()
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert second.block_hashes == tuple(rig.hash(block_id) for block_id in (3, 4))
    assert second.parent_hash == first.block_hashes[1] == rig.hash(2)
    assert list(second.token_ids) == family("B", 32)


def test_scenario_39_common_prefix_of_all_that_run(after_2: Rig):
    after_2.run(1, family("A", 48) + family("C", 5))
    assert after_2.manager.num_common_prefix_blocks() == 3
    after_2.run(2, family("D", 20))
    assert after_2.manager.num_common_prefix_blocks() == 0


def test_scenario_60_three_samples_of_one_prompt_share_its_full_blocks():
    rig = Rig(11)
    granted = []
    for handle in range(3):
        rig.declare(handle, family("A", 33))
        granted.append(rig.admit(handle).num_granted_tokens)
    assert granted == [33, 1, 1]
    assert [rig.manager.block_table(handle) for handle in range(3)] == [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    assert [rig.pool.ref_cnt(block_id) for block_id in (1, 2)] == [3, 3]


def test_a_refused_admission_leaves_no_trace():
    rig = Rig(5)
    rig.run(0, family("A", 32))
    rig.free(0)
    rig.run(1, family("C", 17))
    rig.manager.take_events()
    before = (rig.free_order, rig.manager.figures)
    rig.declare(2, family("A", 32) + family("D", 16))
    assert rig.manager.admit(2).status is AdmissionStatus.REFUSED
    assert (rig.free_order, rig.manager.figures) == before
    assert rig.manager.take_events() == []
    assert rig.manager.block_table(2) == []


def test_the_whole_sequence_must_fit_even_if_only_a_chunk_is_taken():
    gated, free = Rig(5), Rig(5, full_sequence_gate=False)
    for rig in (gated, free):
        rig.declare(0, family("A", 65))
    assert gated.admit(0, 16).status is AdmissionStatus.REFUSED
    assert free.admit(0, 16).status is AdmissionStatus.ADMITTED


def test_hit_blocks_that_nobody_uses_count_as_needed():
    rig = Rig(4)
    rig.run(0, family("A", 32))
    rig.free(0)
    rig.run(1, family("C", 16))
    rig.declare(2, family("A", 33))
    assert rig.pool.num_free == 2
    assert rig.admit(2).status is AdmissionStatus.REFUSED


def test_scenario_57_a_watermark_stays_free_after_an_admission():
    rig = Rig(21)
    rig.run(0, family("A", 14 * 16))
    rig.declare(1, family("B", 80))
    assert rig.manager.admit(1, num_watermark_blocks=2).status is AdmissionStatus.REFUSED
    rig.free(0)
    assert rig.manager.admit(1, num_watermark_blocks=0).status is AdmissionStatus.ADMITTED
    assert rig.pool.num_free == 15


def test_a_request_that_bypasses_the_cache_reads_nothing_is_not_counted_and_is_published():
    rig = Rig(11)
    rig.run(0, family("A", 32))
    rig.declare(1, family("A", 48), is_bypassing_cache=True)
    admission = rig.admit(1)
    rig.ack(1)
    assert (admission.num_cached_tokens, admission.miss_reason) == (0, MissReason.BYPASSED)
    assert rig.manager.figures.num_query_tokens == 32
    assert rig.hit(family("A", 49))[1] == 48


def test_scenario_77_admissions_after_a_preemption_are_counted_apart_and_retries_not_at_all():
    rig = Rig(4)
    rig.run(0, family("A", 33))
    rig.declare(1, family("B", 32))
    for _ in range(3):
        assert rig.admit(1).status is AdmissionStatus.REFUSED
    rig.free(0)
    rig.alloc(0)
    figures = rig.manager.figures
    assert (figures.num_query_tokens, figures.num_hit_tokens) == (33, 0)
    assert (figures.num_preempted_query_tokens, figures.num_preempted_hit_tokens) == (33, 32)


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [
        (family("A", 48) + family("B", 4), MissReason.PARTIAL_BLOCK),
        (family("B", 40), MissReason.COLD),
        (family("A", 32) + family("B", 30), MissReason.COLD),
        (family("E", 40), MissReason.EVICTED),
    ],
)
def test_an_admission_says_why_it_found_no_more(token_ids: list[int], reason: MissReason):
    rig = Rig(8)
    rig.run(9, family("E", 64))
    rig.free(9)
    rig.run(0, family("A", 48))
    rig.free(0)
    rig.run(8, family("F", 64))
    rig.free(8)
    rig.declare(1, token_ids)
    assert rig.admit(1).miss_reason is reason


def test_the_keys_of_a_request_survive_its_preemption():
    rig = Rig(11)
    rig.run(0, family("A", 48))
    keys = rig.manager.request(0).keys
    rig.free(0)
    assert rig.manager.request(0).keys is keys
    assert rig.alloc(0) == [4]
    assert rig.manager.request(0).keys is keys
