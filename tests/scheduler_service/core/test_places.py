"""Who was sent away has a place when it comes back as told. No clock: time is told."""

import pytest

from scheduler_service.core.places import EARLY_S, KEPT_S, LONGEST_S, Line, Places
from scheduler_service.core.request import Request
from tests.scheduler_service.core.rig import a_request


def asking(prompt: int = 1, request_id: str = "r", *, max_tokens: int = 9, **options: str) -> Request:
    return a_request(request_id, [prompt] * 5, max_tokens, **options)


def sent_away(line: Line, request: Request, *, room_in_s: float = 1.0, now_s: float = 100.0) -> float:
    return line.send_away(request, room_in_s=room_in_s, gap_s=0.5, now_s=now_s)


def test_a_place_is_found_by_what_is_asked_whoever_asks() -> None:
    line = Line(Places())
    sent_away(line, asking(1, "first"))
    place = line.places.find(asking(1, "again"), 101.0)
    assert place is not None
    assert place.due_s == pytest.approx(101.0)
    for other in (asking(2), asking(1, tenant="t"), asking(1, cache_salt="s"), asking(1, max_tokens=7)):
        assert line.places.find(other, 101.0) is None


@pytest.mark.parametrize(
    ("now_s", "is_due"), [(101.0 - 2 * EARLY_S, False), (101.0 - EARLY_S, True), (101.0 + KEPT_S - 0.1, True)]
)
def test_it_counts_from_a_little_before_its_time(now_s: float, is_due: bool) -> None:
    line = Line(Places())
    sent_away(line, asking())
    place = line.places.find(asking(), now_s)
    assert place is not None
    assert place.is_due(now_s) == is_due


def test_nobody_who_does_not_come_is_remembered() -> None:
    line = Line(Places())
    for number in range(100):
        sent_away(line, asking(number))
    assert len(line.places) == 100
    assert line.places.find(asking(0), 1000.0) is None
    assert len(line.places) == 0


def test_those_who_are_sent_away_come_back_one_after_the_other() -> None:
    line = Line(Places())
    assert [sent_away(line, asking(number)) for number in range(3)] == pytest.approx(
        [1.0, 1.625, 2.25]
    )  # 1.25 times 0.5 s
    assert sent_away(line, asking(4), room_in_s=9.0) == pytest.approx(9.0)


def test_only_those_who_are_still_to_come_are_expected() -> None:
    line = Line(Places())
    for number in range(4):
        sent_away(line, asking(number))  # due in 1, 1.625, 2.25 and 2.875 s
    assert line.num_due(now_s=100.0, until_s=102.5) == 3
    assert line.num_due(now_s=101.2, until_s=102.5) == 2
    assert line.num_due(now_s=200.0, until_s=300.0) == 0


def test_who_is_in_a_hurry_is_told_what_is_left_of_its_time() -> None:
    line = Line(Places())
    assert sent_away(line, asking(), now_s=100.0) == pytest.approx(1.0)
    assert sent_away(line, asking(), now_s=100.7) == pytest.approx(0.3)
    assert len(line.places) == 1


def test_answers_to_one_call_have_a_place_each() -> None:
    line = Line(Places())
    assert [sent_away(line, asking()) for _ in range(3)] == pytest.approx([1.0, 1.625, 2.25])
    for _ in range(3):
        place = line.places.find(asking(), 102.25)
        assert place is not None
        line.places.end(place)
    assert line.places.find(asking(), 102.25) is None


def test_who_comes_in_time_and_finds_no_room_goes_before_all_who_never_came() -> None:
    line = Line(Places())
    for number in range(20):
        sent_away(line, asking(number))
    told = [sent_away(line, asking(number), room_in_s=0.3, now_s=102.0) for number in range(2)]
    assert told == pytest.approx([0.3, 0.8])
    assert sent_away(line, asking(99), now_s=102.0) > 10
    assert len(line.places) == 21


def test_nobody_is_sent_away_for_ever() -> None:
    line = Line(Places())
    told = [line.send_away(asking(number), room_in_s=1.0, gap_s=100.0, now_s=0.0) for number in range(10)]
    assert told[:3] == pytest.approx([1.0, 126.0, 251.0])
    assert max(told) == LONGEST_S
    assert len(line.places) == 5


def test_a_place_that_another_worker_gave_is_kept_by_all() -> None:
    places = Places()
    first, second = Line(places), Line(places)
    sent_away(first, asking())
    assert second.places.find(asking(), 101.0) is not None
    assert second.num_due(now_s=100.0, until_s=200.0) == 0
