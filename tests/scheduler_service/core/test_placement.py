"""Which worker gets a request, and which requests change places. Scenarios P1 to P14; every one is a rule in one line.

A candidate is (uncached tokens of the request there, tokens queued there, requests there).
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.placement import Candidate, Load, Share, choose, donor, num_to_move

Numbers = tuple[int, int, int]
NAMES = "abcdefgh"


def candidates(*numbers: Numbers) -> list[Candidate]:
    return [
        Candidate(worker_id=name, num_uncached_tokens=uncached, num_queued_tokens=queued, num_requests=requests)
        for name, (uncached, queued, requests) in zip(NAMES, numbers, strict=False)
    ]


def load(worker_id: str, num_requests: int, num_waiting: int = 0, num_queued_tokens: int = 0) -> Load:
    return Load(
        worker_id=worker_id,
        num_requests=num_requests,
        num_waiting=num_waiting,
        num_queued_tokens=num_queued_tokens,
    )


SCENARIOS: dict[str, tuple[list[Numbers], str]] = {
    "P1 the only worker gets it, however busy": ([(500, 90_000, 256)], "a"),
    "P2 nothing cached anywhere: the shorter queue": ([(100, 300, 1), (100, 200, 1)], "b"),
    "P3 equal queues: the longer cached prefix": ([(100, 300, 1), (20, 300, 1)], "b"),
    "P4 a cached prefix outweighs a queue that is shorter by less": ([(1000, 0, 0), (100, 500, 3)], "b"),
    "P5 a queue that is longer by more outweighs a cached prefix": ([(1000, 0, 0), (100, 5000, 3)], "a"),
    "P6 how many requests there are counts for nothing unless tokens tie": ([(100, 10, 200), (100, 11, 0)], "a"),
    "P7 requests that only decode hardly count: a prompt fits beside them": ([(512, 64, 64), (512, 900, 1)], "a"),
    "P8 an idle worker without the prefix loses to a busy one that has it": ([(8000, 0, 0), (1, 3000, 9)], "b"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_least_work_ahead_wins_whatever_is_drawn(name: str) -> None:
    numbers, expected = SCENARIOS[name]
    for draws in product((0.0, 0.3, 0.999), (0.0, 0.3, 0.999)):
        assert choose(candidates(*numbers), draws).worker_id == expected


def test_p9_of_two_drawn_among_equals_the_less_occupied_is_taken() -> None:
    equals = candidates((10, 0, 5), (10, 0, 1), (10, 0, 0))
    assert choose(equals, (0.0, 0.5)).worker_id == "b"
    assert choose(equals, (0.5, 0.0)).worker_id == "b"
    assert choose(equals, (0.0, 0.0)).worker_id == "a"


def test_p10_only_ties_are_drawn_from() -> None:
    three = candidates((10, 0, 5), (0, 10, 9), (11, 0, 0))
    assert {choose(three, draws).worker_id for draws in product((0.0, 0.4, 0.8), (0.0, 0.4, 0.8))} == {"a", "b"}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=8),
    st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
)
def test_p11_nobody_has_less_ahead_than_the_chosen_one(numbers: list[Numbers], draws: tuple[float, float]) -> None:
    chosen = choose(candidates(*numbers), draws)
    assert chosen.num_tokens_ahead == min(uncached + queued for uncached, queued, _ in numbers)


def test_p12_two_choices_keep_equal_workers_even() -> None:
    """A thousand requests over eight equal workers, drawn evenly: the fullest has no more than a few above the mean."""
    counts = dict.fromkeys(NAMES, 0)
    for number in range(1000):
        equals = candidates(*((10, 0, counts[name]) for name in NAMES))
        draws = (number * 0.61803398875 % 1, number * 0.41421356237 % 1)
        counts[choose(equals, draws).worker_id] += 1
    assert max(counts.values()) - min(counts.values()) <= 3


def test_p13_only_an_idle_worker_makes_others_give_up_what_waits_and_the_longest_queue_does() -> None:
    short, long, full = load("a", 3, 2, 500), load("b", 4, 3, 900), load("c", 8, 0, 5000)
    idle = load("d", 0)
    assert donor([short, long, full]) is None
    assert donor([short, idle, long, full]) is long
    assert donor([idle, full]) is None


@pytest.mark.parametrize(
    ("num_tokens", "num_queued_tokens", "expected"),
    [([100, 100, 100, 100], 400, 2), ([100, 100], 1000, 2), ([300, 10, 10], 320, 1), ([10], 10, 1), ([], 500, 0)],
    ids=["all wait: half", "most of it runs: all", "one is half", "a single one", "nothing can move"],
)
def test_p14_to_an_idle_worker_go_the_first_that_make_half_of_the_queue(
    num_tokens: list[int], num_queued_tokens: int, expected: int
) -> None:
    assert num_to_move(num_tokens, num_queued_tokens, share=Share.HALF) == expected
    assert num_to_move(num_tokens, num_queued_tokens, share=Share.ALL) == len(num_tokens)
