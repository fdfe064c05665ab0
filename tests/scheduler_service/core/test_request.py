"""One request: its statuses and how far it may move."""

import pytest

from scheduler_service.core.request import FINISHED, TRANSITIONS, Status
from tests.scheduler_service.core.rig import a_request


def test_every_status_is_in_the_table_and_the_finished_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert all(not TRANSITIONS[status] for status in FINISHED)


def test_a_finished_request_cannot_run_again() -> None:
    request = a_request("a", [1])
    request.enter(Status.ABORTED)
    with pytest.raises(AssertionError, match="may not become"):
        request.enter(Status.RUNNING)


def test_the_last_token_is_never_fed_back() -> None:
    request = a_request("a", [1] * 10, max_tokens=3)
    request.place(1, max_model_len=100)
    request.num_computed_tokens, request.hold = 12, 3
    assert request.num_wanted_tokens(0) == 0
    assert request.is_fully_planned


def test_the_context_limit_counts_like_max_tokens() -> None:
    request = a_request("a", [1] * 10, max_tokens=300)
    request.place(1, max_model_len=12)
    assert (request.max_tokens, request.last_position) == (2, 11)


def test_the_threshold_cuts_a_long_wish() -> None:
    request = a_request("a", [1] * 10, max_tokens=3)
    request.place(1, max_model_len=100)
    assert (request.num_wanted_tokens(4), request.num_wanted_tokens(0)) == (4, 10)
