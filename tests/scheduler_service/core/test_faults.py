"""Failed steps, dead workers and lost plans: outputs are kept, blocks are not, and nobody is tried for ever."""

from scheduler_service.core.plan import Limits, StepResult, StepStatus
from scheduler_service.core.request import Entry, Status
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import Rig, a_request, family


def two_with(*, num_faults: int) -> Rig:
    """Two requests whose first steps failed so often."""
    rig = Rig()
    for name in "ab":
        rig.submit(name, family(name.upper(), 20), max_tokens=5)
    for _ in range(num_faults):
        rig.plan()
        rig.fault()
    return rig


def test_a_fault_sends_its_requests_to_the_front_in_their_order() -> None:
    rig = Rig(window=2)
    rig.submit("a", family("A", 20))
    rig.submit("b", family("B", 20))
    rig.plan()
    rig.submit("c", family("C", 20), max_tokens=5)
    update = rig.fault()
    assert [request.request_id for request in update.preempted] == ["a", "b"]
    assert rig.waiting_ids == ["a", "b", "c"]


def test_reservations_of_a_failed_step_are_withdrawn() -> None:
    rig = Rig()
    rig.submit("a", family("A", 40), max_tokens=3)
    rig.plan()
    rig.fault()
    settlement = rig.plan()
    assert settlement is not None
    assert (rig.plans[-1].failed_step, rig.plans[-1].acked_step) == (1, 0)
    assert rig.sent[0].new_requests[0].num_computed_tokens == 0
    rig.run_to_end()
    assert rig.requests["a"].output_token_ids == continuation(family("A", 40), 3)


def test_after_one_fault_all_are_tried_again_together() -> None:
    rig = two_with(num_faults=1)
    assert rig.step() == {"a": 20, "b": 20}


def test_scenario_89_after_two_faults_in_a_row_each_is_tried_alone_until_it_has_brought_two_tokens() -> None:
    rig = two_with(num_faults=2)
    assert [rig.step() for _ in range(5)] == [{"a": 20}, {"a": 1}, {"b": 20}, {"b": 1}, {"a": 1, "b": 1}]
    assert [request.num_faults for request in rig.requests.values()] == [0, 0]


def test_who_runs_keeps_its_blocks_and_pauses_while_another_is_tried_alone() -> None:
    rig = Rig()
    rig.submit("c", family("C", 20), max_tokens=9)
    rig.step()
    suspect = a_request("a", family("A", 20), max_tokens=9)
    suspect.num_faults = 2
    rig.core.submit(suspect, Entry.BACK)
    table = rig.table("c")
    assert [rig.step() for _ in range(3)] == [{"a": 20}, {"a": 1}, {"c": 1, "a": 1}]
    assert rig.table("c")[: len(table)] == table


def test_the_third_fault_in_a_row_ends_a_request_as_poisoned() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(3):
        assert a.status is not Status.ERROR
        rig.plan()
        rig.fault()
    assert (a.status, a.finish_detail) == (Status.ERROR, "POISONED")
    rig.run_to_end()
    assert rig.kv.figures.num_held == 0


def test_two_new_tokens_between_two_faults_clear_the_record() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(5):
        rig.plan()
        rig.fault()
        rig.step()
        rig.step()
    assert (a.num_faults, a.num_output_tokens) == (0, 10)


def test_one_that_fails_whenever_it_goes_on_is_not_tried_once_for_each_of_its_tokens() -> None:
    """To compute again what is known brings one token each time: that clears nobody."""
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(3):
        rig.step()
        rig.plan()
        rig.fault()
    assert (a.finish_detail, a.num_output_tokens) == ("POISONED", 3)


def test_who_was_only_in_a_step_that_did_not_run_is_not_blamed_when_the_worker_dies_as_well() -> None:
    rig = Rig(window=2)
    a = rig.submit("a", family("A", 20))
    rig.plan()
    rig.plan()
    rig.core.update(StepResult(seq=rig.sent.popleft().seq, status=StepStatus.FAULT))
    rig.core.worker_lost()
    assert a.num_faults == 1


def test_a_void_step_without_a_fault_before_it_blames_nobody() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    rig.plan()
    rig.core.update(StepResult(seq=rig.sent.popleft().seq, status=StepStatus.VOID))
    assert (a.status, a.num_faults) == (Status.PREEMPTED, 0)


def test_rows_are_named_in_full_after_a_fault() -> None:
    rig = Rig()
    rig.submit("a", family("A", 20))
    rig.step()
    rig.plan()
    rig.fault()
    rig.plan()
    assert list(rig.sent[0].handles) == [1]


def test_a_lost_worker_gives_everybody_back_in_order_with_their_outputs() -> None:
    rig = Rig(limits=Limits(max_num_seqs=2))
    for name in "abc":
        rig.submit(name, family(name.upper(), 20))
    rig.step()
    requests, poisoned = rig.core.worker_lost()
    assert [request.request_id for request in requests] == ["a", "b", "c"]
    assert not poisoned
    other = Rig()
    for request in reversed(requests):
        other.core.submit(request, Entry.BACK)
    assert list(other.step()) == ["a", "b", "c"]
    assert [request.num_output_tokens for request in requests] == [2, 2, 1]


def test_three_worker_deaths_poison_what_was_in_flight() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(3):
        rig.plan()
        requests, poisoned = rig.core.worker_lost()
        rig = Rig()
        for request in requests:
            rig.core.submit(request, Entry.BACK)
    assert poisoned == [a]
    assert a.status is Status.ERROR


def test_a_worker_that_leaves_in_good_order_is_nobody_s_fault() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(5):
        rig.plan()
        requests, poisoned = rig.core.worker_lost(has_left=True)
        rig = Rig()
        for request in requests:
            rig.core.submit(request, Entry.BACK)
    assert (poisoned, a.num_faults) == ([], 0)


def test_an_abandoned_plan_is_wished_for_again_whole() -> None:
    rig = Rig(window=2)
    rig.submit("a", family("A", 40), max_tokens=1)
    rig.step()
    rig.submit("b", family("B", 40))
    first = rig.core.schedule()
    rig.core.abandon()
    assert rig.core.schedule() == first
    assert first is not None
    assert (first.frees.handles, first.forgotten_handles, first.acked_step) == ((1,), (1,), 1)


def test_a_restarted_kv_cache_service_gets_the_tables_and_nothing_is_lost() -> None:
    rig = Rig(num_blocks=30, window=2)
    for name in "abc":
        rig.submit(name, family(name.upper(), 40), max_tokens=30)
    for number in range(60):
        if number % 7 == 3:
            rig.restart_kv()
        rig.plan()
        if rig.sent:
            rig.result()
    rig.run_to_end()
    for name in "abc":
        assert rig.requests[name].output_token_ids == continuation(family(name.upper(), 40), 30)
    assert rig.kv.figures.num_held == 0


def test_a_result_that_comes_twice_changes_nothing() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    rig.step()
    assert not rig.core.update(StepResult(seq=1, token_ids=[5])).outputs
    assert a.num_output_tokens == 1


def test_a_hit_on_a_block_that_is_still_to_be_written_is_not_declared_as_written() -> None:
    rig = Rig(num_blocks=20)
    for name in "ab":
        rig.submit(name, family("A", 33), max_tokens=3)
    rig.plan()
    assert rig.requests["b"].num_cached_tokens == 32
    rig.restart_kv()
    assert [table.num_acked_tokens for table in rig.core.declare_tables()] == [0, 0]
    assert len(rig.kv.pool.cache) == 0
    rig.fault()
    rig.run_to_end()
    for name in "ab":
        assert rig.requests[name].output_token_ids == continuation(family("A", 33), 3)
