"""The scheduler's rules of docs/behaviour.md line by line, each with the cases at its borders."""

import pytest

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import Rejected
from scheduler_service.core.request import FINISHED, SET_ASIDE, TRANSITIONS, Status, StopRules
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import Rig, a_request, family

EOS, STOP = 2, 42


def ids(requests: object) -> list[str]:
    return [request.request_id for request in requests]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("done", "known", "hold", "drafts", "threshold", "wanted"),
    [
        (0, 10, 0, 0, 0, 10),  # a whole prompt
        (0, 10, 0, 0, 4, 4),  # cut by the long-prefill threshold
        (8, 10, 0, 0, 4, 2),  # its rest
        (10, 11, 0, 0, 0, 1),  # decoding
        (11, 11, 1, 0, 0, 1),  # the placeholder of a token that is still being sampled
        (11, 11, 0, 0, 0, 0),  # caught up
        (10, 11, 0, 3, 0, 4),  # one token and three drafts
        (10, 11, 0, 3, 2, 2),  # the threshold cuts drafts as well
        (17, 18, 0, 3, 0, 2),  # positions end at prompt + max_tokens - 1
        (19, 20, 0, 3, 0, 0),
        (25, 20, 0, 0, 0, 0),  # never below 0
    ],
)
def test_a_request_wants_to_reach_its_target(
    done: int, known: int, hold: int, drafts: int, threshold: int, wanted: int
) -> None:
    request = a_request("a", [1] * 10, max_tokens=10, given=[1] * (known - 10))
    request.place(1, max_model_len=100)
    request.num_computed_tokens, request.hold, request.drafts = done, hold, (7,) * drafts
    assert request.num_wanted_tokens(threshold) == wanted


@pytest.mark.parametrize(("max_model_len", "max_tokens", "last"), [(100, 5, 14), (12, 5, 11), (11, 5, 10), (15, 5, 14)])
def test_no_position_is_planned_whose_token_would_never_be_fed_back(
    max_model_len: int, max_tokens: int, last: int
) -> None:
    rig = Rig(max_model_len=max_model_len)
    a = rig.submit("a", family("A", 10), max_tokens=max_tokens)
    assert rig.run_to_end() == last
    assert a.num_output_tokens == last + 1 - 10


def test_one_that_wants_nothing_is_passed_over_and_the_next_goes_on() -> None:
    rig = Rig(window=2)
    rig.submit("done", family("A", 10), max_tokens=1)
    rig.submit("b", family("B", 10))
    rig.plan()
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert [row.request.request_id for row in settlement.sent.rows] == ["b"]


def test_running_requests_are_served_before_waiting_ones_and_in_the_order_of_their_admission() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=8))
    rig.submit("a", family("A", 14))
    rig.submit("b", family("B", 4))
    assert [list(rig.step().items()) for _ in range(3)] == [[("a", 8)], [("a", 6), ("b", 2)], [("a", 1), ("b", 2)]]


def test_a_victim_that_was_granted_something_in_the_plan_gives_it_back() -> None:
    """The worst class is first in running order, so it has its token before a better one needs its blocks."""
    rig = Rig(num_blocks=6, caching=False, policy=Policy.PRIORITY, limits=Limits(max_num_batched_tokens=64))
    rig.submit("low", family("L", 40), priority=5)
    rig.step()
    rig.submit("high", family("H", 32), priority=0, max_tokens=20)
    rig.step()
    assert rig.running_ids == ["low", "high"]
    assert rig.step() == {"high": 1}
    assert rig.waiting_ids == ["low"]


@pytest.mark.parametrize(("policy", "victims"), [(Policy.FCFS, ["c", "b"]), (Policy.PRIORITY, ["a", "c"])], ids=str)
def test_who_loses_its_blocks_first(policy: Policy, victims: list[str]) -> None:
    """FCFS takes the last that was let in, PRIORITY the worst class and in it the latest to arrive."""
    rig = Rig(policy=policy, num_blocks=5)
    for name, priority, arrival in [("a", 2, 1), ("b", 1, 2), ("c", 1, 3)]:
        rig.submit(name, family(name, 16), priority=priority, arrival=arrival)
    rig.plan()
    rig.result()
    plan = rig.core.schedule()
    assert plan is not None
    by_handle = {request.handle: name for name, request in rig.requests.items()}
    assert [by_handle[handle] for handle in plan.grows.victims][:2] == victims


def test_the_running_phase_ends_with_a_request_that_is_its_own_victim() -> None:
    rig = Rig(num_blocks=6, caching=False, policy=Policy.PRIORITY)
    rig.submit("first", family("A", 20), priority=0, arrival=0)
    rig.step()
    rig.submit("worst", family("B", 32), priority=9, arrival=1)
    rig.submit("last", family("C", 1), priority=9, arrival=2)
    rig.requests["last"].priority = 8  # let in behind the worst, and better than it
    assert rig.step() == {"first": 1, "worst": 32, "last": 1}
    assert rig.step() == {"first": 1}
    assert (rig.running_ids, rig.waiting_ids) == (["first", "last"], ["worst"])


def test_several_victims_keep_their_order_and_go_before_earlier_ones() -> None:
    rig = Rig()
    for name in "abcd":
        rig.submit(name, family(name, 8))
    rig.step()
    rig.core._roster.release([rig.requests["d"]])
    rig.core._roster.release([rig.requests["c"], rig.requests["a"]])
    assert rig.waiting_ids == ["a", "c", "d"]
    assert [rig.requests[name].epoch for name in "abcd"] == [1, 0, 1, 1]


def test_a_preempted_request_keeps_its_outputs_and_nothing_else() -> None:
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    for _ in range(3):
        rig.step()
    a.offer_drafts([1, 2])
    rig.core._roster.release([a])
    assert (a.num_computed_tokens, a.hold, a.drafts, a.block_ids, a.epoch) == (0, 0, (), [], 1)
    assert a.output_token_ids == continuation(family("A", 20), 3)
    assert a.status is Status.PREEMPTED


@pytest.mark.parametrize("policy", list(Policy))
def test_the_head_of_the_queue_is_not_overtaken_when_it_is_refused(policy: Policy) -> None:
    rig = Rig(num_blocks=5, policy=policy, limits=Limits(max_num_batched_tokens=100))
    rig.submit("running", family("R", 20))
    rig.step()
    rig.submit("large", family("L", 50))
    rig.submit("small", family("S", 1))
    assert rig.step() == {"running": 1}
    assert rig.waiting_ids == ["large", "small"]


def test_set_aside_requests_keep_their_place_and_lose_no_turn() -> None:
    rig = Rig(limits=Limits(max_num_seqs=1))
    for name in "abc":
        rig.submit(name, family(name, 8), max_tokens=1)
    rig.core.set_aside("a", Status.WAITING_FOR_GRAMMAR)
    order = list(rig.step())
    rig.core.set_ready("a")
    order += [*rig.step(), *rig.step()]
    assert order == ["b", "a", "c"]


@pytest.mark.parametrize("seqs", [1, 2, 3])
def test_no_more_requests_run_than_there_are_slots(seqs: int) -> None:
    rig = Rig(limits=Limits(max_num_seqs=seqs))
    for number in range(5):
        rig.submit(f"r{number}", family(chr(65 + number), 8))
    assert len(rig.step()) == seqs


@pytest.mark.parametrize(("known", "num_tokens"), [(20, [20]), (21, [])])
def test_without_chunks_a_prompt_goes_whole_or_not_at_all(known: int, num_tokens: list[int]) -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=20, is_chunked_prefill=False))
    rig.submit("a", family("A", known))
    settlement = rig.plan()
    assert settlement is not None
    assert (settlement.sent.num_tokens if settlement.sent is not None else []) == num_tokens


def test_without_chunks_a_cached_prefix_makes_a_long_prompt_fit() -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=40, is_chunked_prefill=False))
    rig.submit("a", family("A", 33), max_tokens=1)
    rig.step()
    rig.submit("b", family("A", 32) + family("B", 40))
    assert rig.step() == {"b": 40}


@pytest.mark.parametrize(
    ("length", "is_taken"),
    [(1, True), (47, True), (48, False), (63, False), (64, False)],
)
def test_what_can_never_fit_is_refused_at_submit(length: int, is_taken: bool) -> None:
    """Three usable blocks; max_tokens does not count."""
    rig = Rig(num_blocks=4)
    if is_taken:
        rig.submit("a", family("A", length), max_tokens=10_000)
        rig.run_to_end()
        assert rig.requests["a"].is_finished
    else:
        with pytest.raises(Rejected):
            rig.submit("a", family("A", length), max_tokens=1)
        assert rig.core.num_requests == 0


@pytest.mark.parametrize(
    ("min_tokens", "max_tokens", "is_taken"),
    [(0, 1, True), (5, 5, True), (6, 5, False), (22, 100, True), (23, 100, False), (0, 0, False)],
)
def test_min_tokens_are_at_most_the_clamped_max_tokens(min_tokens: int, max_tokens: int, is_taken: bool) -> None:
    rig = Rig(max_model_len=32)
    rules = StopRules(max_tokens=max_tokens, min_tokens=min_tokens)
    if is_taken:
        rig.submit("a", family("A", 10), rules=rules)
    else:
        with pytest.raises(Rejected):
            rig.submit("a", family("A", 10), rules=rules)


@pytest.mark.parametrize(
    ("tokens", "rules", "kept", "status"),
    [
        ([EOS], {}, 1, Status.STOPPED),
        ([5, EOS, 6], {}, 2, Status.STOPPED),
        ([STOP, 6], {}, 1, Status.STOPPED),
        ([EOS], {"ignore_eos": True}, 1, Status.RUNNING),
        ([STOP], {"ignore_eos": True}, 1, Status.STOPPED),  # only the end of sequence is ignored
        ([EOS, 6, 7], {"min_tokens": 2}, 3, Status.RUNNING),
        ([5, EOS, 7], {"min_tokens": 2}, 2, Status.STOPPED),
        ([5, STOP, 7], {"min_tokens": 3}, 3, Status.RUNNING),
        ([5, 6, 7, 8], {"max_tokens": 3}, 3, Status.LENGTH),
        ([5, 6, EOS], {"max_tokens": 3}, 3, Status.STOPPED),  # a stop token counts before the length
        ([5, 6, EOS], {"max_tokens": 3, "ignore_eos": True}, 3, Status.LENGTH),
        ([5, 6], {"max_tokens": 2, "min_tokens": 2}, 2, Status.LENGTH),
        ([5, EOS], {"max_tokens": 2, "min_tokens": 2}, 2, Status.STOPPED),
        ([5] * 9, {"max_tokens": 100}, 8, Status.LENGTH),  # the model's 18 tokens are full
    ],
)
def test_stop_rules_token_by_token(tokens: list[int], rules: dict[str, int], kept: int, status: Status) -> None:
    defaults = {"max_tokens": 50, "eos_token_ids": frozenset({EOS}), "stop_token_ids": frozenset({STOP})}
    a = a_request("a", [1] * 10, rules=StopRules(**(defaults | rules)))  # type: ignore[arg-type]
    a.place(1, max_model_len=18)
    a.enter(Status.RUNNING)
    assert a.append(tokens) == tokens[:kept]
    assert a.status is status


@pytest.mark.parametrize("num_returned", [1, 2, 3, 4])
def test_every_number_of_accepted_drafts_leaves_sums_that_agree(num_returned: int) -> None:
    rig = Rig()
    a = rig.submit("a", [7])
    rig.step()
    a.offer_drafts([1, 2, 3])
    rig.plan()
    rig.outcome_of_drafts([9] * num_returned)
    assert (a.num_known_tokens, a.hold) == (2 + num_returned, 0)
    assert a.num_computed_tokens == a.num_acked_tokens == a.num_known_tokens - 1
    assert rig.core.figures.num_accepted_tokens == num_returned - 1


@pytest.mark.parametrize(("budget", "num_tokens"), [(100, 4), (3, 3), (1, 1)])
def test_drafts_that_do_not_fit_the_budget_are_left_out(budget: int, num_tokens: int) -> None:
    rig = Rig(limits=Limits(max_num_batched_tokens=budget))
    a = rig.submit("a", [7])
    rig.step()
    a.offer_drafts([1, 2, 3])
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    (row,) = settlement.sent.rows
    assert (row.num_tokens, row.num_drafts, a.hold) == (num_tokens, num_tokens - 1, num_tokens)
    rig.outcome_of_drafts([9])
    assert (a.num_computed_tokens, a.num_known_tokens, a.hold) == (2, 3, 0)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_planned_tokens_are_prompt_and_answer_less_one(window: int, length: int) -> None:
    for max_tokens in (1, 2, 16, 17):
        rig = Rig(window=window, limits=Limits(max_num_batched_tokens=24))
        rig.submit("a", family("A", length), max_tokens=max_tokens)
        assert rig.run_to_end() == length + max_tokens - 1


def test_cached_tokens_of_a_request_are_those_of_its_first_admission() -> None:
    rig = Rig()
    rig.submit("a", family("A", 40), max_tokens=1)
    rig.run_to_end()
    b = rig.submit("b", family("A", 32) + family("B", 30))
    rig.step()
    rig.core._roster.release([b])
    rig.step()
    assert (b.num_cached_tokens, b.num_preemptions) == (32, 1)


def test_an_admission_that_was_refused_before_is_counted_once() -> None:
    rig = Rig(num_blocks=5)
    rig.submit("a", family("A", 40), max_tokens=3)
    rig.step()
    rig.submit("b", family("B", 30), max_tokens=1)
    rig.run_to_end()
    assert (rig.core.figures.num_query_tokens, rig.kv.figures.num_query_tokens) == (70, 70)


def test_a_request_that_bypasses_the_cache_reads_nothing_is_not_counted_and_is_found_by_others() -> None:
    rig = Rig()
    rig.submit("a", family("A", 48), max_tokens=1)
    rig.run_to_end()
    rig.submit("b", family("A", 48) + family("B", 16), max_tokens=1, cache_bypass=True)
    assert rig.step() == {"b": 64}
    rig.submit("c", family("A", 48) + family("B", 17), max_tokens=1)
    assert rig.step() == {"c": 1}
    assert (rig.core.figures.num_query_tokens, rig.core.figures.num_hit_tokens) == (48 + 65, 64)


def test_who_cannot_get_a_block_waits_while_others_hold_some_and_ends_when_alone() -> None:
    rig = Rig(num_blocks=5, caching=False)
    rig.submit("a", family("A", 16), max_tokens=17)
    b = rig.submit("b", family("B", 32), max_tokens=100)
    rig.step()
    while "a" in rig.running_ids:
        assert not b.is_finished
        rig.step()
    rig.run_to_end()
    assert rig.requests["a"].output_token_ids == continuation(family("A", 16), 17)
    assert (b.status, b.finish_detail, b.num_known_tokens) == (Status.LENGTH, "kv_capacity", 65)


@pytest.mark.parametrize("window", [1, 2])
def test_results_that_come_after_an_abort_bring_no_tokens(window: int) -> None:
    rig = Rig(window=window)
    a = rig.submit("a", family("A", 10))
    rig.plan()
    rig.core.abort("a")
    update = rig.result()
    assert [output.token_ids for output in update.outputs] == [[]]
    assert a.num_output_tokens == 0
    rig.run_to_end()
    assert rig.kv.figures.num_held == 0


@pytest.mark.parametrize("before", list(Status))
@pytest.mark.parametrize("after", list(Status))
def test_statuses_change_along_the_table_only(before: Status, after: Status) -> None:
    request = a_request("a", [1])
    request.status = before
    if after in TRANSITIONS[before]:
        request.enter(after)
        assert request.status is after
    else:
        with pytest.raises(AssertionError, match="may not become"):
            request.enter(after)


def test_finished_is_a_set_and_nothing_that_waits_is_in_it() -> None:
    assert {Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.REJECTED, Status.ERROR} == FINISHED
    assert not FINISHED & (SET_ASIDE | {Status.WAITING, Status.RUNNING, Status.PREEMPTED})
