"""The verdict catches each thing that may go wrong with an answer, and lets through what is right."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.attempt import Attempt, Ending, Outcome
from tests.chaos.reference import contradictions
from tests.chaos.requests import Request, Way, request_set
from tests.chaos.transcript import Piece, Score, Transcript, Usage
from tests.chaos.verdict import DEADLINE_SLACK_S, LOGPROB_TOLERANCE, RECONNECT_S, Window, judge

IDS = (11, 12, 13, 14)
TEXT = "abcd"
REQUEST = Request(name="r", way=Way.HTTP_STREAM, prompt="x", max_tokens=4, top_logprobs=2)
HURRIED = replace(REQUEST, deadline_s=5.0)
LEAVING = replace(REQUEST, leave_after_events=2)
GATEWAY_DIED = (Window(begun_s=12.0, ended_s=13.0),)


def score(at: int) -> Score:
    return Score(token=TEXT[at], logprob=-0.5, top={TEXT[at]: -0.5, "z": -2.0})


def piece(at: int) -> Piece:
    return Piece(index=0, text=TEXT[at], token_ids=(IDS[at],), scores=(score(at),))


END = Piece(index=0, finish_reason="length")


def transcript(pieces: list[Piece], *, usage: Usage | None = None, is_closed: bool = False) -> Transcript:
    received = Transcript(1)
    for number, each in enumerate(pieces):
        received.add(each, now_s=float(number))
    if usage is not None:
        received.tell_usage(usage)
    if is_closed:
        received.close()
    return received


def whole(
    pieces: list[Piece] | None = None, *, prompt_tokens: int = 7, completion_tokens: int = 4, cached_tokens: int = 0
) -> Transcript:
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cached_tokens=cached_tokens)
    return transcript([*map(piece, range(4)), END] if pieces is None else pieces, usage=usage, is_closed=True)


def beginning(num_tokens: int) -> Transcript:
    return transcript([piece(at) for at in range(num_tokens)])


def attempt(received: Transcript, ending: Ending = Ending.COMPLETE, *, took_s: float = 2.0) -> Attempt:
    return Attempt(started_s=10.0, ended_s=10.0 + took_s, transcript=received, ending=ending, detail="why")


def complaints(*attempts: Attempt, request: Request = REQUEST, broken: tuple[Window, ...] = ()) -> str:
    outcome = Outcome(request=request, stream=0, attempts=list(attempts))
    return "\n".join(judge(outcome, whole(), broken=broken))


def test_the_undisturbed_answer_is_right():
    assert not complaints(attempt(whole()))


def test_cached_tokens_may_differ_and_logprobs_may_be_rounded():
    rounded = replace(piece(0), scores=(replace(score(0), logprob=-0.5 + LOGPROB_TOLERANCE / 2),))
    assert not complaints(attempt(whole([rounded, *map(piece, range(1, 4)), END], cached_tokens=5)))


def test_the_least_likely_of_the_most_likely_tokens_may_change_places_with_its_equal():
    swapped = replace(piece(0), scores=(replace(score(0), top={"a": -0.5, "y": -2.0}),))
    assert not complaints(attempt(whole([swapped, *map(piece, range(1, 4)), END])))


WRONG: dict[str, tuple[Callable[[list[Piece]], list[Piece]], str]] = {
    "a changed token": (lambda p: [p[0], replace(p[1], token_ids=(99,)), *p[2:]], "token 1 is 99, undisturbed 12"),
    "a repeated token": (lambda p: [p[0], p[1], p[1], *p[2:]], "token 2 is 12, undisturbed 13"),
    "a lost token": (lambda p: [p[0], *p[2:]], "token 1 is 13, undisturbed 12"),
    "a token too few": (lambda p: [*p[:3], p[4]], "token 3 is not there, undisturbed 14"),
    "a token too many": (lambda p: [*p[:4], p[3], p[4]], "token 4 is 14, undisturbed not there"),
    "changed text": (lambda p: [replace(p[0], text="Z"), *p[1:]], "text from 0 is 'Zbcd', undisturbed 'abcd'"),
    "repeated text": (lambda p: [p[0], replace(p[1], text="bb"), *p[2:]], "text from 2 is 'bcd', undisturbed 'cd'"),
    "a missing finish": (lambda p: p[:4], "finished with None"),
    "another finish": (lambda p: [*p[:4], replace(p[4], finish_reason="stop")], "finished with stop"),
    "another stop cause": (lambda p: [*p[:4], replace(p[4], stop_cause="x")], "finished with length ('x')"),
    "two finishes": (lambda p: [*p, p[4]], "choice 0 went on after its end"),
    "text after the end": (lambda p: [*p, p[3]], "choice 0 went on after its end"),
    "a choice nobody asked for": (lambda p: [replace(p[0], index=1), *p], "choice 1 came, 1 were asked for"),
    "a missing logprob": (lambda p: [replace(p[0], scores=()), *p[1:]], "3 logprobs, undisturbed 4"),
    "another logprob": (
        lambda p: [replace(p[0], scores=(replace(score(0), logprob=-0.6),)), *p[1:]],
        "logprob 0 is",
    ),
    "another likely token": (
        lambda p: [replace(p[0], scores=(replace(score(0), top={"a": -0.5, "y": -0.4}),)), *p[1:]],
        "logprob 0 is",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_complete_answer_with_anything_wrong_is_caught(what: str):
    spoil, said = WRONG[what]
    assert said in complaints(attempt(whole(spoil([*map(piece, range(4)), END]))))


@pytest.mark.parametrize(
    ("received", "said"),
    [
        (whole(completion_tokens=5), "completion_tokens=5"),
        (whole(prompt_tokens=6), "prompt_tokens=6"),
        (whole(cached_tokens=8), "8 of 7 prompt tokens were cached"),
        (transcript([*map(piece, range(4)), END], is_closed=True), "usage is missing"),
        (transcript([*map(piece, range(4)), END], usage=whole().usage), "without the server saying so"),
    ],
)
def test_wrong_usage_and_a_missing_end_are_caught(received: Transcript, said: str):
    assert said in complaints(attempt(received))


def test_usage_or_an_end_that_comes_twice_is_caught():
    received = whole()
    received.tell_usage(Usage(prompt_tokens=7, completion_tokens=4, cached_tokens=0))
    received.close()
    said = complaints(attempt(received))
    assert "usage came twice" in said
    assert "the end came after the end" in said


def test_what_a_client_had_when_it_left_is_a_beginning():
    assert not complaints(attempt(beginning(2), Ending.LEFT), request=LEAVING)
    wrong = transcript([piece(0), piece(2)])
    assert "token 1 is 13" in complaints(attempt(wrong, Ending.LEFT), request=LEAVING)


def test_a_broken_connection_is_right_only_while_something_is_done_to_the_gateway():
    tries = attempt(beginning(2), Ending.BROKEN), attempt(whole())
    assert not complaints(*tries, broken=GATEWAY_DIED)
    assert "nothing was done to the gateway" in complaints(*tries)
    assert "nothing was done to the gateway" in complaints(
        *tries, broken=(Window(begun_s=0.0, ended_s=9.9 - RECONNECT_S),)
    )


def test_a_gateway_that_was_asked_to_end_finishes_what_it_had():
    before = attempt(beginning(2), Ending.BROKEN), attempt(whole())
    asked = Window(begun_s=11.0, ended_s=13.0, is_graceful=True)
    assert "nothing was done to the gateway" in complaints(*before, broken=(asked,))
    assert not complaints(*before, broken=(replace(asked, begun_s=9.9),))


def test_what_came_before_the_connection_broke_must_be_a_beginning_of_the_answer():
    wrong = transcript([piece(0), replace(piece(1), token_ids=(99,))])
    assert "token 1 is 99" in complaints(attempt(wrong, Ending.BROKEN), attempt(whole()), broken=GATEWAY_DIED)


def test_a_request_whose_last_try_broke_is_lost():
    assert "given up after 1 tries" in complaints(attempt(beginning(2), Ending.BROKEN), broken=GATEWAY_DIED)


def test_a_refusal_is_right_before_the_first_event_only():
    assert not complaints(attempt(Transcript(1), Ending.REFUSED), attempt(whole()))
    assert "refused after it had begun" in complaints(attempt(beginning(1), Ending.REFUSED), attempt(whole()))


def test_any_other_failure_is_wrong_even_when_the_gateway_died():
    assert "failed: why" in complaints(attempt(beginning(1), Ending.FAILED), broken=GATEWAY_DIED)


def test_a_deadline_is_right_for_those_who_set_one_and_in_time():
    assert not complaints(attempt(beginning(2), Ending.DEADLINE, took_s=5.1), request=HURRIED)
    late = attempt(beginning(2), Ending.DEADLINE, took_s=5.1 + DEADLINE_SLACK_S)
    assert "was told after" in complaints(late, request=HURRIED)
    assert "no deadline was given" in complaints(attempt(beginning(2), Ending.DEADLINE))


def test_a_reference_that_contradicts_itself_is_no_reference():
    plain = replace(REQUEST, top_logprobs=None)
    assert "usage counts 5 tokens, 4 came" in list(contradictions(plain, whole(completion_tokens=5)))
    assert "choice 0: 4 logprobs for 4 tokens" in list(contradictions(plain, whole()))
    assert "choice 0: a stop sequence is in 'abcd'" in list(contradictions(replace(REQUEST, stop=("c",)), whole()))
    assert not list(contradictions(REQUEST, whole()))


def test_the_request_set_is_the_same_for_the_same_seed_and_has_every_kind_every_way():
    requests = request_set(7, 300)
    assert requests == request_set(7, 300)
    assert requests != request_set(8, 300)
    assert len({request.name for request in requests}) == 300
    for way in Way:
        of_way = [request for request in requests if request.way is way]
        for trait in ("plain", "scored", "several", "stopped", "leaves", "ends_by_itself", "long_prompt", "in_a_hurry"):
            assert any(request.name.endswith(f"-{trait}") for request in of_way), f"no {trait} over {way.value}"
        assert any(request.seed is None for request in of_way)
        assert any(request.seed is not None for request in of_way)
