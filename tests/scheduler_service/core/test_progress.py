"""When requests do not move: how long it takes to be noticed, what they wait for, and when it is hopeless."""

import pytest

from scheduler_service.core.plan import (
    Admission,
    AdmissionStatus,
    Grants,
    Limits,
    PoolFigures,
    StepResult,
    StepStatus,
)
from scheduler_service.core.progress import WAITS_FOR, Progress
from scheduler_service.core.request import Status
from tests.scheduler_service.core.rig import Rig, family


@pytest.mark.parametrize(
    ("waits_for", "now_s", "is_stalled"),
    [("kv_blocks", 4.9, False), ("kv_blocks", 5.0, True), ("worker_step", 9.9, False), ("worker_step", 10.0, True)],
)
def test_it_takes_some_seconds_without_a_step(waits_for: str, now_s: float, is_stalled: bool) -> None:
    progress = Progress(0.0)
    assert (progress.stall(waits_for, now_s) is not None) == is_stalled


def test_a_step_or_nobody_to_wait_begins_it_anew() -> None:
    progress = Progress(0.0)
    progress.moved(10.0)
    assert progress.stall("kv_blocks", 14.0) is None
    assert progress.stall("", 20.0) is None
    assert progress.stall("kv_blocks", 24.0) is None


@pytest.mark.parametrize(
    ("waits_for", "is_hopeless"), [("kv_blocks", True), ("max_seqs", True), ("kvcache", False), ("worker_step", False)]
)
def test_after_half_a_minute_it_is_hopeless_unless_another_process_may_help(waits_for: str, is_hopeless: bool) -> None:
    progress = Progress(0.0)
    early, late = progress.stall(waits_for, 29.0), progress.stall(waits_for, 30.0)
    assert early is not None
    assert late is not None
    assert (early.is_hopeless, late.is_hopeless) == (False, is_hopeless)
    assert (late.since_s, late.duration_s) == (0.0, 30.0)


def waits_for(rig: Rig, *, is_kv_ready: bool = True) -> str:
    reason = rig.core.waits_for(is_kv_ready=is_kv_ready)
    assert reason in ("", *WAITS_FOR)
    return reason


def test_what_everybody_waits_for_has_a_name() -> None:
    rig = Rig(num_blocks=6)
    assert waits_for(rig) == ""
    rig.submit("a", family("A", 20))
    assert waits_for(rig, is_kv_ready=False) == "kvcache"
    assert waits_for(rig) == "turn"
    rig.plan()
    assert waits_for(rig) == "worker_step"
    rig.result()
    rig.submit("b", family("B", 60))
    rig.step()
    assert waits_for(rig) == "kv_blocks"


def test_requests_that_are_set_aside_say_for_what() -> None:
    rig = Rig()
    rig.submit("a", family("A", 20))
    rig.core.set_aside("a", Status.WAITING_FOR_GRAMMAR)
    assert rig.plan() is None
    assert waits_for(rig) == "waiting_for_grammar"
    assert rig.core.num_waiting_by_reason == {"waiting_for_grammar": 1}


def test_the_queue_is_counted_by_reason() -> None:
    rig = Rig(limits=Limits(max_num_seqs=1))
    for name in "abcd":
        rig.submit(name, family(name, 20))
    rig.step()
    rig.step()
    assert rig.core.num_waiting_by_reason == {"max_seqs": 1, "turn": 2}


def test_blocks_that_somebody_unknown_holds_are_waited_for_and_asked_for_again() -> None:
    """Nothing tells the scheduler when they come free: it must ask again by itself."""
    rig, other = Rig(num_blocks=8), Rig(num_blocks=8)
    other.kv = rig.kv
    other.core._roster._next_handle = 1000  # a stranger in the same pool
    other.submit("stranger", family("S", 60), max_tokens=1)
    settlement = other.plan()
    assert settlement is not None
    assert settlement.step is not None
    rig.core._flight.last_step = other.core._flight.last_step
    rig.submit("a", family("A", 60), max_tokens=1)
    assert rig.plan() is not None
    assert (rig.running_ids, rig.plan()) == ([], None)
    assert waits_for(rig) == "kv_blocks"
    other.result()
    other.core._flight.last_step = rig.core._flight.last_step
    other.plan()
    assert rig.plan() is None
    rig.core.ask_again()
    rig.core._flight.last_step = other.core._flight.last_step
    assert rig.step() == {"a": 60}


def test_a_faulted_step_is_an_answer() -> None:
    rig = Rig()
    rig.submit("a", family("A", 20))
    rig.plan()
    rig.core.update(StepResult(seq=rig.sent.popleft().seq, status=StepStatus.FAULT))
    assert waits_for(rig) != "worker_step"


@pytest.mark.parametrize(
    ("figures", "is_judged"),
    [
        (PoolFigures(num_held=0), True),
        (PoolFigures(num_held=5, num_held_by_pins_only=5), True),
        (PoolFigures(num_held=5, num_held_by_pins_only=4), False),
        (PoolFigures(num_held=0, num_fenced=1), False),
    ],
)
def test_a_refused_request_ends_only_when_nothing_can_come_free_any_more(figures: PoolFigures, is_judged: bool) -> None:
    """What only pins hold was offered to it; what others hold, or a fence keeps, is waited for."""
    rig = Rig()
    a = rig.submit("a", family("A", 20))
    assert rig.core.schedule() is not None
    refused = Grants(admissions=[Admission(status=AdmissionStatus.REFUSED)], figures=figures)
    settlement = rig.core.settle(refused)
    assert (settlement.finished == [a]) == is_judged
    assert a.finish_detail == ("kv_capacity" if is_judged else "")
