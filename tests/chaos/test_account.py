"""The account of a campaign says how often, how long, and what went wrong."""

from tests.chaos.account import Account
from tests.chaos.campaign import Round
from tests.chaos.faults import Fault, Kind


def a_round(kind: Kind, *, pause_s: float, complaints: tuple[str, ...] = ()) -> Round:
    fault = Fault(target="scheduler", kind=kind, duration_s=0, directions=(), seed=1)
    return Round(
        faults=[fault],
        is_ready=True,
        ready_after_s=0,
        worst_pause_s=pause_s,
        num_streams=1,
        num_outcomes=10,
        complaints=complaints,
    )


def test_rounds_of_one_kind_make_one_line_with_their_median_and_worst_pause():
    account = Account()
    for pause_s in (1.0, 2.0, 6.0):
        account.add(a_round(Kind.KILL, pause_s=pause_s))
    account.add(a_round(Kind.STOP, pause_s=5.0))
    _, kill, stop, total = account.table()
    assert kill.split() == ["scheduler", "kill", "3", "0", "2.00", "s", "6.00", "s"]
    assert stop.split() == ["scheduler", "stop", "1", "0", "5.00", "s", "5.00", "s"]
    assert total.startswith("4 faults, 40 answers; 0 failed")


def test_a_complaint_and_something_left_over_are_failures():
    account = Account()
    account.add(a_round(Kind.KILL, pause_s=1, complaints=("a token was changed", "another too")))
    account.add_left(["3 tables"])
    account.add_left([])
    assert account.num_failed == 2
