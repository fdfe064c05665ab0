"""Stop strings: the pieces never change the result, and nothing of a stop string is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.stop import StopMatcher


def cut(pieces: list[str], stops: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = "".join([matcher.push(piece) for piece in pieces])
    return shown + matcher.flush(), matcher.matched


def cut_whole(text: str, stops: list[str], *, include_stop: bool) -> tuple[str, str | None]:
    """The rule, read off the whole text: the first place where a stop string ends, the longest that ends there."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include_stop else end - len(stop)], stop
    return text, None


few_letters = st.text(alphabet="ab\u00e9\U0001f600", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab\u00e9\U0001f600", min_size=1, max_size=4), max_size=4)


@given(
    pieces=st.lists(st.one_of(few_letters, st.text(max_size=5)), max_size=8), stops=stop_lists, include=st.booleans()
)
def test_any_split_of_any_text_gives_what_the_whole_text_gives(pieces: list[str], stops: list[str], include: bool):
    assert cut(pieces, stops, include_stop=include) == cut_whole("".join(pieces), stops, include_stop=include)


@given(text=few_letters, stops=stop_lists)
def test_what_is_shown_while_the_text_comes_never_has_to_be_taken_back(text: str, stops: list[str]):
    matcher = StopMatcher(stops)
    final, _ = cut_whole(text, stops, include_stop=False)
    shown = ""
    for char in text:
        shown += matcher.push(char)
        assert final.startswith(shown)


def test_a_stop_string_across_pieces_is_found():
    assert cut(["one\nU", "ser: two"], ["\nUser:"]) == ("one", "\nUser:")


def test_a_beginning_that_leads_nowhere_is_shown_as_soon_as_that_is_clear():
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == "the "
    assert matcher.push("Ormous") == "ENOrmous"


@pytest.mark.parametrize(("stops", "shown"), [(["bc", "abcd"], "a"), (["c", "abc"], "")])
def test_the_first_to_be_complete_wins_and_of_two_that_end_together_the_longer(stops: list[str], shown: str):
    assert cut(["abcd"], stops)[0] == shown


def test_nothing_is_shown_after_a_match():
    matcher = StopMatcher(["x"])
    assert [matcher.push("ax"), matcher.push("more"), matcher.flush()] == ["a", "", ""]
