"""The rules of docs/behaviour.md for blocks and admissions, line by line, each with the cases at its borders."""

import pytest

from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.errors import OutOfBlocks
from kvcache_service.core.events import BlocksStored
from kvcache_service.core.plan import AdmissionStatus, Admits, Declaration, Grows, Plan
from tests.kvcache_service.rig import Rig, family

ADMITTED, REFUSED, NOT_TRIED = AdmissionStatus.ADMITTED, AdmissionStatus.REFUSED, AdmissionStatus.NOT_TRIED


@pytest.mark.parametrize(("num_blocks", "asked", "given"), [(2, 1, [1]), (11, 0, []), (11, 3, [1, 2, 3]), (4, 4, None)])
def test_blocks_are_given_all_or_none_in_ascending_order(num_blocks: int, asked: int, given: list[int] | None) -> None:
    pool = BlockPool(num_blocks)
    if given is None:
        with pytest.raises(OutOfBlocks):
            pool.allocate(asked)
        assert pool.num_free == num_blocks - 1
    else:
        assert pool.allocate(asked) == given
        assert pool.num_free == num_blocks - 1 - asked


@pytest.mark.parametrize(
    ("num_tokens", "order"),
    [
        (15, [1, 2, 3, 4, 5, 6]),  # nothing full: to the head
        (16, [2, 3, 4, 5, 6, 1]),  # full: to the tail
        (17, [2, 3, 4, 5, 6, 1]),
        (48, [4, 5, 6, 3, 2, 1]),  # the deepest is evicted first
        (50, [4, 5, 6, 3, 2, 1]),
        (96, [6, 5, 4, 3, 2, 1]),
    ],
)
def test_a_released_request_leaves_its_blocks_deepest_first(num_tokens: int, order: list[int]) -> None:
    rig = Rig(7)
    rig.run(0, family("A", num_tokens))
    rig.free(0)
    assert rig.free_order == order


@pytest.mark.parametrize(("first", "order"), [(0, [5, 6, 7, 2, 1, 4, 3]), (1, [5, 6, 7, 4, 3, 2, 1])])
def test_the_order_of_eviction_is_that_of_the_last_release(first: int, order: list[int]) -> None:
    rig = Rig(8)
    rig.run(0, family("A", 32))
    rig.run(1, family("C", 32))
    rig.free(first)
    rig.free(1 - first)
    assert rig.free_order == order


def test_a_hit_makes_a_prefix_young_again() -> None:
    rig = Rig(8)
    for handle, name in enumerate("AC"):
        rig.run(handle, family(name, 32))
        rig.free(handle)
    rig.run(2, family("A", 33))
    rig.free(2)
    assert rig.free_order == [5, 6, 7, 4, 3, 2, 1]


def test_a_shared_block_is_free_when_its_last_user_goes() -> None:
    rig = Rig(8)
    rig.run(0, family("A", 33))
    rig.run(1, family("A", 32) + family("B", 1))
    rig.free(0)
    assert rig.free_order == [3, 5, 6, 7]
    rig.free(1)
    assert rig.free_order == [4, 3, 5, 6, 7, 2, 1]


@pytest.mark.parametrize("caching", [True, False])
def test_without_caching_nothing_is_found_and_releases_go_to_the_tail(caching: bool) -> None:
    rig = Rig(6, caching=caching)
    rig.run(0, family("A", 40))
    rig.free(0)
    assert rig.free_order == ([3, 4, 5, 2, 1] if caching else [4, 5, 3, 2, 1])
    assert rig.hit(family("A", 40))[1] == (32 if caching else 0)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80])
def test_a_hit_is_of_full_blocks_and_leaves_a_token_to_compute(length: int) -> None:
    rig = Rig(11)
    rig.run(0, family("A", 64))
    assert rig.hit((family("A", 64) + family("Z", 16))[:length])[1] == min(64, (length - 1) // 16 * 16)


def test_a_hole_in_a_chain_ends_the_hit() -> None:
    rig = Rig(11)
    rig.run(0, family("A", 64))
    assert rig.hit(family("A", 16) + family("B", 16) + family("A", 64)[32:] + [1])[1] == 16


@pytest.mark.parametrize(
    ("num_tokens", "lookahead", "max_model_len", "num_blocks"),
    [(1, 0, None, 1), (16, 0, None, 1), (17, 0, None, 2), (16, 1, None, 2), (16, 16, None, 2), (16, 17, None, 3),
     (16, 3, 16, 1), (10, 30, 33, 3), (10, 30, 32, 2)],
)  # fmt: skip
def test_as_many_blocks_as_the_slots_need(
    num_tokens: int, lookahead: int, max_model_len: int | None, num_blocks: int
) -> None:
    rig = Rig(11, **({} if max_model_len is None else {"max_model_len": max_model_len}))
    rig.declare(0, family("A", num_tokens))
    assert len(rig.alloc(0, num_lookahead_tokens=lookahead)) == num_blocks


@pytest.mark.parametrize(("held", "watermark", "status"), [(4, 2, ADMITTED), (5, 2, REFUSED), (5, 1, ADMITTED)])
def test_the_watermark_must_stay_free_behind_an_admission(held: int, watermark: int, status: AdmissionStatus) -> None:
    """Ten usable blocks; the request needs four."""
    rig = Rig(11)
    rig.run(0, family("A", 16 * held))
    rig.declare(1, family("B", 64))
    assert rig.manager.admit(1, num_watermark_blocks=watermark).status is status


@pytest.mark.parametrize(("num_chunk", "known", "status"), [(16, 80, ADMITTED), (16, 81, REFUSED), (81, 81, REFUSED)])
def test_the_whole_known_sequence_must_fit_whatever_the_first_chunk(
    num_chunk: int, known: int, status: AdmissionStatus
) -> None:
    rig = Rig(6)
    rig.declare(0, family("A", known))
    assert rig.manager.admit(0, num_chunk).status is status


@pytest.mark.parametrize("num_free", [0, 1, 2])
def test_idle_hit_blocks_count_as_needed_and_used_ones_do_not(num_free: int) -> None:
    """A hit of two blocks and one new one: if nobody uses the hit, three blocks leave the free queue."""
    rig = Rig(4 + num_free)
    rig.run(0, family("A", 32))
    rig.run(1, family("C", 16))
    rig.declare(2, family("A", 33))
    used = rig.manager.admit(2).status
    assert used is (ADMITTED if num_free else REFUSED)
    idle = Rig(4 + num_free)
    idle.run(0, family("A", 32))
    idle.free(0)
    idle.run(1, family("C", 16))
    idle.declare(2, family("A", 33))
    assert idle.manager.admit(2).status is (ADMITTED if num_free else REFUSED)


def test_a_refusal_leaves_declared_ids_and_hashes_and_nothing_else() -> None:
    rig = Rig(4)
    rig.declare(0, family("A", 64))
    keys = list(rig.manager.request(0).keys)
    assert rig.admit(0).status is REFUSED
    assert (rig.free_order, rig.manager.take_events(), rig.manager.block_table(0)) == ([1, 2, 3], [], [])
    assert rig.manager.request(0).keys == keys


def test_room_for_drafts_is_taken_and_never_published() -> None:
    rig = Rig(11)
    rig.declare(0, family("A", 30))
    assert rig.alloc(0, num_lookahead_tokens=10) == [1, 2, 3]
    assert [rig.is_hashed(block_id) for block_id in (1, 2, 3)] == [True, False, False]
    stored = [event for event in rig.manager.take_events() if isinstance(event, BlocksStored)]
    assert [event.block_ids for event in stored] == [(1,)]


@pytest.mark.parametrize(
    ("budget", "granted"),
    [(100, [40, 8, 20]), (48, [40, 8, 0]), (47, [40, 7, 0]), (40, [40, 0, 0]), (10, [10, 0, 0]), (0, [0, 0, 0])],
)
def test_the_budget_is_handed_out_in_order(budget: int, granted: list[int]) -> None:
    """The second shares its two full blocks with the first: hits cost nothing."""
    prompts = [family("A", 40), family("A", 32) + family("B", 8), family("C", 20)]
    grants = Rig(31).plan(
        Plan(
            step=1,
            token_budget=budget,
            max_admissions=9,
            declares=[Declaration(handle=handle, token_ids=prompt) for handle, prompt in enumerate(prompts)],
            admits=Admits(handles=[0, 1, 2], num_known_tokens=[40, 40, 20], num_watermark_blocks=[0, 0, 0]),
        )
    )
    assert [admission.num_granted_tokens for admission in grants.admissions] == granted
    statuses = [admission.status for admission in grants.admissions]
    assert statuses == [ADMITTED if num_tokens else NOT_TRIED for num_tokens in granted]


@pytest.mark.parametrize(
    ("victims", "preempted", "granted"),
    [([], [], [0, 1]), ([2], [2], [1, 1]), ([2, 1, 0], [2], [1, 1]), ([1, 2], [1], [1, 0]), ([0], [0], [0, 0])],
)
def test_victims_are_taken_in_the_order_given_until_it_fits(
    victims: list[int], preempted: list[int], granted: list[int]
) -> None:
    """Request 0 needs a third block, request 1 has room; 2 holds two blocks. If 0 is its own victim, the phase ends."""
    rig = Rig(7, caching=False)
    for handle, length in enumerate([32, 20, 32]):
        rig.run(handle, family(chr(65 + handle), length))
        rig.append(handle, [7])
    rig.manager.step = 9
    grants = rig.plan(Plan(step=9, token_budget=50, grows=Grows(handles=[0, 1], wants=[1, 1], victims=victims)))
    assert (list(grants.preempted_handles), list(grants.grow_num_tokens)) == (preempted, granted)
    assert sorted(rig.manager.running) == sorted({0, 1, 2} - set(preempted))


@pytest.mark.parametrize("num_releases", [1, 2, 5])
def test_a_release_counts_once_per_epoch(num_releases: int) -> None:
    rig = Rig(11)
    rig.run(0, family("A", 40))
    for _ in range(num_releases):
        rig.manager.free(0, 0)
    assert (rig.pool.num_free, rig.manager.request(0).epoch) == (10, 1)
    rig.alloc(0)
    rig.manager.free(0, 0)
    assert len(rig.manager.block_table(0)) == 3


def test_reset_needs_every_block_free_pins_and_fences_included() -> None:
    rig = Rig(11)
    rig.run(0, family("A", 32))
    rig.manager.fence("reader", [1])
    assert not rig.manager.reset_prefix_cache()
    rig.free(0)
    assert not rig.manager.reset_prefix_cache()
    rig.manager.unfence("reader")
    assert rig.manager.reset_prefix_cache()
    assert rig.hit(family("A", 33)) == ([], 0)
