"""Scenarios 65 to 77 of docs/scenarios.md: who loses its blocks, and when it gets them back."""

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import KVCapacityExceeded
from scheduler_service.core.request import Status
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import Rig, family, granted


def test_scenario_65_the_last_to_run_is_the_first_victim() -> None:
    """128 known tokens: a prompt of 127 and a token that it came with, because a prompt of 128 never fits 8 blocks."""
    limits = Limits(max_num_batched_tokens=200, long_prefill_token_threshold=64)
    rig = Rig(num_blocks=9, caching=False, full_sequence_gate=False, limits=limits)
    rig.submit("r0", family("A", 127), given=[5])
    rig.submit("r1", family("B", 32))
    rig.submit("r2", family("C", 32))
    assert rig.step() == {"r0": 64, "r1": 32, "r2": 32}
    assert rig.kv.figures.num_free == 0
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert {row.request.request_id: row.num_tokens for row in settlement.sent.rows} == {"r0": 64}
    assert rig.waiting_ids == ["r1", "r2"]
    assert rig.table("r0") == [1, 2, 3, 4, 8, 7, 6, 5]


def test_scenario_65_the_prompt_of_128_itself_never_fits() -> None:
    rig = Rig(num_blocks=9)
    with pytest.raises(KVCapacityExceeded):
        rig.submit("r0", family("A", 128))


def test_scenario_65_victims_are_taken_from_the_end() -> None:
    rig = Rig(num_blocks=9, caching=False, full_sequence_gate=False,
              limits=Limits(max_num_batched_tokens=200, long_prefill_token_threshold=64))  # fmt: skip
    requests = [rig.submit("r0", family("A", 127), given=[5])]
    requests += [rig.submit(name, family(name, 32)) for name in "BC"]
    rig.step()
    plan = rig.core.schedule()
    assert plan is not None
    grants = granted(rig.kv, plan)
    assert list(grants.preempted_handles) == [requests[2].handle, requests[1].handle]


def test_scenario_66_one_victim_serves_two_and_nobody_is_admitted_meanwhile() -> None:
    rig = Rig(num_blocks=7, caching=False)
    for number in range(3):
        rig.submit(f"r{number}", family(chr(65 + number), 32))
    assert rig.step() == {"r0": 32, "r1": 32, "r2": 32}
    assert [request.num_known_tokens for request in rig.core.running] == [33, 33, 33]
    assert rig.step() == {"r0": 1, "r1": 1}
    assert (rig.table("r0"), rig.table("r1")) == ([1, 2, 6], [3, 4, 5])
    assert rig.kv.figures.num_free == 0
    assert rig.step() == {"r0": 1, "r1": 1}
    assert rig.waiting_ids == ["r2"]


def test_scenario_67_nobody_is_admitted_in_a_step_with_a_preemption() -> None:
    rig = Rig(num_blocks=8, caching=False)
    rig.submit("r0", family("A", 32))
    rig.submit("r1", family("B", 79))
    rig.step()
    rig.submit("small", family("S", 1))
    settlement = rig.plan()
    assert settlement is not None
    assert [request.request_id for request in settlement.preempted] == ["r1"]
    assert not settlement.admitted
    assert rig.kv.figures.num_free == 4
    assert rig.waiting_ids == ["r1", "small"]


@pytest.mark.parametrize(
    ("priorities", "arrivals", "order"),
    [([2, 0, 1], [1, 2, 3], [1, 2, 0]), ([1, 1, 1], [3, 1, 2], [1, 2, 0]), ([2, 1, 1, 0], [1, 3, 2, 4], [3, 2, 1, 0])],
)
def test_scenario_68_lower_numbers_first_then_arrival(
    priorities: list[int], arrivals: list[int], order: list[int]
) -> None:
    rig = Rig(policy=Policy.PRIORITY)
    for number, (priority, arrival) in enumerate(zip(priorities, arrivals, strict=True)):
        rig.submit(f"r{number}", family(chr(65 + number), 10), priority=priority, arrival=arrival)
    assert list(rig.step()) == [f"r{number}" for number in order]


def test_scenario_69_one_at_a_time_in_order_of_priority() -> None:
    rig = Rig(policy=Policy.PRIORITY, limits=Limits(max_num_seqs=1))
    for priority in [5, 1, 8, 3, 2, 7, 4, 6]:
        rig.submit(str(priority), family(chr(65 + priority), 10), max_tokens=1, priority=priority)
    assert [next(iter(rig.step())) for _ in range(8)] == ["1", "2", "3", "4", "5", "6", "7", "8"]


def test_scenario_71_the_lower_class_is_preempted_and_resumes_whole() -> None:
    rig = Rig(num_blocks=5, policy=Policy.PRIORITY, caching=False)
    low = rig.submit("low", family("L", 30), priority=5)
    rig.step()
    rig.submit("high", family("H", 32), max_tokens=2, priority=0)
    assert rig.step() == {"low": 1, "high": 32}
    assert rig.step() == {"high": 1}
    assert (low.status, low.num_known_tokens) == (Status.PREEMPTED, 32)
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.admitted == [low]
    (new,) = rig.sent[0].new_requests
    assert (new.handle, new.epoch, len(new.token_ids), new.num_computed_tokens) == (low.handle, 1, 32, 0)
    assert list(new.block_ids) == rig.table("low")
    assert settlement.sent is not None
    assert [row.num_tokens for row in settlement.sent.rows] == [32]


@pytest.mark.parametrize(("high", "runs"), [(0, "second"), (5, "first")])
def test_scenario_72_only_a_strictly_higher_class_takes_a_slot(high: int, runs: str) -> None:
    limits = Limits(max_num_seqs=1, preempts_for_slots=True)
    rig = Rig(policy=Policy.PRIORITY, limits=limits)
    rig.submit("first", family("A", 10), priority=5)
    rig.step()
    rig.submit("second", family("B", 10), priority=high)
    assert list(rig.step()) == [runs]
    assert list(rig.step()) == [runs]


def test_scenario_72_without_slot_preemption_the_higher_class_waits() -> None:
    rig = Rig(policy=Policy.PRIORITY, limits=Limits(max_num_seqs=1))
    rig.submit("low", family("A", 10), priority=5)
    rig.step()
    rig.submit("high", family("B", 10), priority=0)
    assert rig.step() == {"low": 1}


def test_scenario_73_of_one_class_the_preempted_go_before_those_who_never_ran() -> None:
    rig = Rig(num_blocks=5, policy=Policy.PRIORITY, caching=False)
    rig.submit("other", family("O", 31), priority=1, arrival=0)
    rig.submit("a", family("A", 32), priority=1, arrival=10)
    rig.step()
    rig.submit("b", family("B", 10), priority=1, arrival=5)
    rig.step()
    rig.step()
    assert rig.waiting_ids == ["a", "b"]


def test_scenario_76_fenced_blocks_of_a_victim_count_as_coming_and_nobody_else_loses_any() -> None:
    rig = Rig(num_blocks=7, caching=False)
    for number in range(3):
        rig.submit(f"r{number}", family(chr(65 + number), 32))
    rig.step()
    rig.kv.fence("reader", rig.table("r2"))
    for _ in range(3):
        settlement = rig.plan()
        assert settlement is not None
        assert settlement.step is None
        assert (rig.running_ids, rig.waiting_ids) == (["r0", "r1"], ["r2"])
        assert (rig.kv.figures.num_free, rig.kv.figures.num_held, rig.kv.figures.num_fenced) == (0, 4, 2)
    rig.kv.unfence("reader")
    assert rig.step() == {"r0": 1, "r1": 1}
    assert {rig.table("r0")[-1], rig.table("r1")[-1]} == {5, 6}


def test_scenario_77_a_resumed_request_counts_apart() -> None:
    rig = Rig(num_blocks=5)
    rig.submit("a", family("A", 31), max_tokens=10)
    b = rig.submit("b", family("B", 32), max_tokens=4)
    rig.run_to_end()
    assert (b.num_preemptions, b.num_cached_tokens) == (1, 0)
    for figures in (rig.core.figures, rig.kv.figures):
        assert (figures.num_query_tokens, figures.num_hit_tokens) == (63, 0)
        assert (figures.num_preempted_query_tokens, figures.num_preempted_hit_tokens) == (33, 16)


def test_a_preempted_request_waits_until_every_sent_step_with_it_is_answered() -> None:
    rig = Rig(num_blocks=5, caching=False, window=3)
    rig.submit("a", family("A", 32), max_tokens=40)
    b = rig.submit("b", family("B", 31), max_tokens=9)
    rig.plan()
    rig.plan()
    rig.core.abort("a")
    rig.plan()
    assert (b.status, b.num_in_flight, rig.kv.figures.num_held) == (Status.PREEMPTED, 1, 0)
    rig.result()
    rig.plan()
    assert b.status is Status.RUNNING
    rig.run_to_end()
    assert b.output_token_ids == continuation(family("B", 31), 9)


def test_a_late_token_of_a_preempted_request_is_delivered_and_touches_no_counter() -> None:
    rig = Rig(num_blocks=5, caching=False, window=2)
    rig.submit("a", family("A", 32))
    b = rig.submit("b", family("B", 32))
    rig.plan()
    rig.plan()
    assert b.status is Status.PREEMPTED
    update = rig.result()
    assert [output.request.request_id for output in update.outputs] == ["a", "b"]
    assert b.output_token_ids == continuation(family("B", 32), 1)
    assert (b.num_computed_tokens, b.hold, b.num_acked_tokens) == (0, 0, 0)


def test_alone_with_a_full_pool_a_request_ends_with_what_it_has() -> None:
    for window in (1, 2):
        rig = Rig(num_blocks=4, window=window)
        a = rig.submit("a", family("A", 40), max_tokens=100)
        rig.run_to_end()
        assert (a.status, a.finish_detail) == (Status.LENGTH, "kv_capacity")
        assert a.output_token_ids == continuation(family("A", 40), 9)
        assert rig.kv.figures.num_free == 3
