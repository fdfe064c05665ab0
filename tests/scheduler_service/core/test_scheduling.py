"""Scenarios 45 to 62 of docs/scenarios.md: budget, chunks, hits, slots."""

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.request import Status
from tests.scheduler_service.core.rig import Rig, family


def test_scenario_45_all_fit_and_are_planned_in_arrival_order() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=8192, max_num_seqs=16))
    for number in range(10):
        rig.submit(f"r{number}", family(chr(65 + number), 10))
    assert list(rig.step().items()) == [(f"r{number}", 10) for number in range(10)]
    assert rig.core.num_waiting == 0


def test_scenario_46_the_threshold_lets_others_pass_a_long_prompt() -> None:
    limits = Limits(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    rig = Rig(limits=limits)
    for number in range(3):
        rig.submit(f"r{number}", family(chr(65 + number), 800))
    assert [list(rig.step().values()) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


@pytest.mark.parametrize(("is_chunked", "expected"), [(True, {"r0": 800, "r1": 224}), (False, {"r0": 800})])
def test_scenario_47_the_head_of_the_queue_is_not_overtaken(is_chunked: bool, expected: dict[str, int]) -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=1024, max_num_seqs=3, is_chunked_prefill=is_chunked))
    for number, length in enumerate([800, 800, 10, 10]):
        rig.submit(f"r{number}", family(chr(65 + number), length))
    assert rig.step() == expected


def test_scenario_48_decoding_goes_first_and_the_prompt_gets_the_rest() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=64))
    rig.submit("a", family("A", 10))
    rig.step()
    rig.submit("b", family("B", 100))
    assert [rig.step() for _ in range(3)] == [{"a": 1, "b": 63}, {"a": 1, "b": 37}, {"a": 1, "b": 1}]


def test_scenario_49_blocked_requests_are_set_aside_and_others_pass() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=100))
    for number in range(5):
        rig.submit(f"r{number}", family(chr(65 + number), 50))
    rig.core.set_aside("r0", Status.WAITING_FOR_REMOTE_KV)
    rig.core.set_aside("r1", Status.WAITING_FOR_REMOTE_KV)
    assert rig.step() == {"r2": 50, "r3": 50}
    assert (len(rig.core.running), rig.core.num_waiting - rig.core.num_set_aside, rig.core.num_set_aside) == (2, 1, 2)


def test_scenario_49_a_request_that_is_ready_again_keeps_its_place() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=100))
    for number in range(2):
        rig.submit(f"r{number}", family(chr(65 + number), 50))
    rig.core.set_aside("r0", Status.WAITING_FOR_GRAMMAR)
    rig.core.set_ready("r0")
    assert list(rig.step()) == ["r0", "r1"]


def test_scenario_50_slots_are_reused_when_requests_finish() -> None:
    rig = Rig(limits=Limits(max_num_seqs=2))
    for number in range(4):
        rig.submit(f"r{number}", family(chr(65 + number), 10), max_tokens=2)
    steps = [rig.step() for _ in range(4)]
    assert steps == [{"r0": 10, "r1": 10}, {"r0": 1, "r1": 1}, {"r2": 10, "r3": 10}, {"r2": 1, "r3": 1}]


def test_scenario_50_a_request_whose_every_token_is_planned_holds_no_slot() -> None:
    rig = Rig(limits=Limits(max_num_seqs=1), window=2)
    rig.submit("a", family("A", 10), max_tokens=1)
    rig.submit("b", family("B", 10), max_tokens=1)
    rig.plan()
    rig.plan()
    assert rig.running_ids == ["a", "b"]


def test_scenario_52_the_first_chunk_starts_behind_the_cached_prefix() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=20))
    rig.submit("a", family("A", 48), max_tokens=1)
    rig.run_to_end()
    b = rig.submit("b", family("A", 48) + family("B", 52))
    done = []
    steps = []
    for _ in range(4):
        steps.append(rig.step()["b"])
        done.append(b.num_computed_tokens)
    assert steps == [20, 20, 12, 1]
    assert done == [68, 88, 100, 101]
    assert b.num_cached_tokens == 48


def test_scenario_57_the_watermark_holds_only_while_somebody_runs() -> None:
    rig = Rig(num_blocks=21, limits=Limits(watermark=0.1))
    rig.submit("a", family("A", 14 * 16 - 1))
    rig.step()
    rig.submit("b", family("B", 80))
    assert rig.step() == {"a": 1}
    alone = Rig(num_blocks=21, limits=Limits(watermark=0.1))
    alone.submit("b", family("B", 80))
    assert alone.step() == {"b": 80}
    assert alone.kv.figures.num_free == 15


def test_scenario_58_new_blocks_are_sent_when_they_are_needed() -> None:
    rig = Rig()
    rig.submit("a", family("A", 30))
    sent = []
    for _ in range(5):
        rig.plan()
        step = rig.sent[0]
        sent.append([*(step.new_requests[0].block_ids if step.new_requests else ()), *step.new_block_ids])
        rig.result()
    assert sent == [[1, 2], [], [], [3], []]


def test_scenario_59_a_like_prompt_shares_the_blocks_reserved_in_the_same_step() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=1000))
    rig.submit("a", family("A", 100))
    rig.submit("b", family("A", 100))
    assert rig.step() == {"a": 100, "b": 4}
    assert rig.table("b")[:6] == rig.table("a")[:6] == [1, 2, 3, 4, 5, 6]


def test_scenario_60_children_of_one_prompt_share_its_full_blocks() -> None:
    rig = Rig()
    for number in range(3):
        rig.submit(f"n{number}", family("A", 33))
    assert list(rig.step().values()) == [33, 1, 1]
    assert [rig.table(f"n{number}") for number in range(3)] == [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    assert [rig.kv.pool.ref_cnt(block_id) for block_id in (1, 2)] == [3, 3]


def test_scenario_62_waiting_requests_can_be_aborted_and_nothing_else_happens() -> None:
    rig = Rig()
    for number in range(10):
        rig.submit(f"r{number}", family(chr(65 + number), 10))
    left = []
    for number in range(10):
        rig.core.abort(f"r{number}")
        left.append(rig.core.num_waiting)
    assert left == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert rig.core.abort("r0") is None
    assert rig.core.abort("unknown") is None
    assert rig.plan() is None


def test_the_rows_of_an_unchanged_batch_are_not_named_again() -> None:
    rig = Rig()
    for number in range(3):
        rig.submit(f"r{number}", family(chr(65 + number), 10))
    named = []
    for _ in range(3):
        rig.plan()
        named.append(list(rig.sent[0].handles))
        rig.result()
    assert named == [[1, 2, 3], [], []]


def test_a_step_inside_blocks_that_are_held_needs_no_answer() -> None:
    rig = Rig()
    rig.submit("a", family("A", 17))
    for _ in range(16):
        rig.step()
    assert [plan.needs_answer for plan in rig.plans] == [True, True, *[False] * 13, True]


def test_while_the_kv_cache_service_is_away_those_inside_their_blocks_move_on() -> None:
    rig = Rig()
    rig.submit("a", family("A", 20))
    rig.submit("b", family("B", 31))
    rig.step()
    rig.submit("c", family("C", 5))
    assert rig.core.schedule(is_kv_ready=False) is not None
    settlement = rig.core.settle(None)
    assert settlement.sent is not None
    assert [row.request.request_id for row in settlement.sent.rows] == ["a"]


def test_tokens_that_were_not_told_do_not_count_against_the_next_budget() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=20))
    rig.submit("a", family("A", 17))
    for _ in range(6):
        rig.step()
    rig.submit("b", family("B", 100))
    assert rig.step() == {"a": 1, "b": 19}
