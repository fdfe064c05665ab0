"""The schedule of restarts: at once, then later and later; afresh after a long run; not for ever."""

import pytest

from octavo.cli.restarts import MAX_ENDS, SETTLED_S, WINDOW_S, Restarts


def pauses(ends: list[tuple[float, float]]) -> list[float | None]:
    """The pause after each end, given as (now, how long it ran)."""
    restarts = Restarts()
    decided = [restarts.ended(now_s, ran_s=ran_s) for now_s, ran_s in ends]
    return [restart.pause_s if restart else None for restart in decided]


def test_first_restart_is_at_once_and_later_ones_wait_longer_up_to_ten_seconds():
    ends = [(float(20 * i), 1.0) for i in range(9)]
    assert pauses(ends) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_service_that_ran_a_minute_starts_afresh():
    assert pauses([(0.0, 1.0), (1.0, 1.0), (61.0, SETTLED_S)]) == [0.0, 0.5, 0.0]
    assert pauses([(0.0, 1.0), (1.0, 1.0), (60.0, SETTLED_S - 1)]) == [0.0, 0.5, 1.0]


def test_more_ends_than_allowed_within_the_window_are_too_many():
    assert pauses([(float(i), 1.0) for i in range(MAX_ENDS + 1)])[-2:] == [10.0, None]


def test_long_runs_count_within_the_window_too():
    assert pauses([(float(i), SETTLED_S) for i in range(MAX_ENDS + 1)])[-1] is None


def test_ends_before_the_window_are_forgotten():
    ends = [(float(i), SETTLED_S) for i in range(MAX_ENDS)]
    assert pauses([*ends, (WINDOW_S + MAX_ENDS, SETTLED_S)])[-1] == 0.0


@pytest.mark.parametrize("num_ends", [1, 2, 10])
def test_decision_says_the_how_manyth_end_it_is(num_ends: int):
    restarts = Restarts()
    for i in range(num_ends):
        decided = restarts.ended(float(i), ran_s=0.0)
    assert decided is not None
    assert (decided.num_ends, restarts.num_ends) == (num_ends, num_ends)
