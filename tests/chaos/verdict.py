"""Compares what clients received with the undisturbed answers and says, in sentences, everything that is wrong. Pure.

The rules. Whatever ends as complete is exactly the undisturbed answer: text, token ids, finish reasons, causes, usage;
log probabilities to within rounding. Whatever ends earlier, because the client left, its time was over or its
connection broke, is a beginning of it. Connections break only while a fault at the gateway is the reason; then the
client asks again, and nothing it got before may differ from what it gets in the end. Refusals come before the first
event and say when to ask again. No other failure is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.attempt import Attempt, Ending, Outcome
from tests.chaos.requests import Request
from tests.chaos.transcript import Choice, Score, Transcript

LOGPROB_TOLERANCE = 1e-3  # a recomputed prompt is multiplied in other shapes: the last bits of fp32 may differ
RECONNECT_S = 3.0  # a gRPC channel's dial may take 2 s, and calls until the next fail with the error of the last
DEADLINE_SLACK_S = 2.0  # that the end of a request may come late on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time in which connections of clients may break, on the clock of time.monotonic()."""

    begun_s: float
    ended_s: float
    is_graceful: bool = False  # the gateway was asked to end: what it had in hand it finishes

    def may_break(self, attempt: Attempt) -> bool:
        meets = attempt.started_s <= self.ended_s + RECONNECT_S and attempt.ended_s >= self.begun_s
        return meets and not (self.is_graceful and attempt.started_s < self.begun_s)


def judge(outcome: Outcome, answer: Transcript, *, broken: Sequence[Window] = ()) -> list[str]:
    """Everything that is wrong with an outcome; nothing if it is exact. `broken` are the faults at the gateway."""
    request = outcome.request
    found = [
        complaint
        for attempt in outcome.attempts
        for complaint in _attempt_complaints(
            request, attempt, answer, may_break=any(window.may_break(attempt) for window in broken)
        )
    ]
    if outcome.last.ending in (Ending.REFUSED, Ending.BROKEN, Ending.SILENT) and request.deadline_s is None:
        found.append(f"given up after {len(outcome.attempts)} tries: {outcome.last.ending.value} {outcome.last.detail}")
    return [f"{request.name}: {complaint}" for complaint in found]


def differences(received: Transcript, answer: Transcript, *, is_whole: bool) -> Iterator[str]:
    """Where `received` is not `answer`, or not a beginning of it."""
    for index, (got, wanted) in enumerate(zip(received.choices, answer.choices, strict=True)):
        for difference in _choice_differences(got, wanted, is_whole=is_whole or got.finish_reason is not None):
            yield f"choice {index}: {difference}"
    if is_whole or received.usage is not None:
        yield from _usage_differences(received, answer)


def _attempt_complaints(request: Request, attempt: Attempt, answer: Transcript, *, may_break: bool) -> Iterator[str]:
    received = attempt.transcript
    yield from received.violations
    yield from differences(received, answer, is_whole=attempt.ending is Ending.COMPLETE)
    match attempt.ending:
        case Ending.COMPLETE if not received.is_closed:
            yield "ended without the server saying so"
        case Ending.BROKEN | Ending.SILENT if not may_break:
            yield f"{attempt.ending.value} although nothing was done to the gateway: {attempt.detail}"
        case Ending.REFUSED if received.has_begun:
            yield f"refused after it had begun: {attempt.detail}"
        case Ending.FAILED:
            yield f"failed: {attempt.detail}"
        case Ending.DEADLINE:
            yield from _deadline_complaints(request, attempt, may_be_late=may_break)
        case Ending.LEFT if request.leave_after_s is None and request.leave_after_events is None:
            yield "its client left, which it was not to do"


def _deadline_complaints(request: Request, attempt: Attempt, *, may_be_late: bool) -> Iterator[str]:
    took_s = attempt.ended_s - attempt.started_s
    if request.deadline_s is None:
        yield f"no deadline was given, and yet: {attempt.detail}"
    elif took_s > request.deadline_s + DEADLINE_SLACK_S and not may_be_late:
        yield f"its deadline of {request.deadline_s:g} s was told after {took_s:.2f} s"


def _choice_differences(got: Choice, wanted: Choice, *, is_whole: bool) -> Iterator[str]:
    if (at := _first_difference(got.token_ids, wanted.token_ids, is_whole=is_whole)) is not None:
        yield f"token {at} is {_at(got.token_ids, at)}, undisturbed {_at(wanted.token_ids, at)}"
    if (at := _first_difference(got.text, wanted.text, is_whole=is_whole)) is not None:
        yield f"text from {at} is {got.text[at : at + 20]!r}, undisturbed {wanted.text[at : at + 20]!r}"
    if (is_whole and len(got.scores) < len(wanted.scores)) or len(got.scores) > len(wanted.scores):
        yield f"{len(got.scores)} logprobs, undisturbed {len(wanted.scores)}"
    for at, (score, undisturbed) in enumerate(zip(got.scores, wanted.scores, strict=False)):
        if not _is_same_score(score, undisturbed):
            yield f"logprob {at} is {score}, undisturbed {undisturbed}"
            break
    if is_whole and (got.finish_reason, got.stop_cause) != (wanted.finish_reason, wanted.stop_cause):
        yield (
            f"finished with {got.finish_reason} ({got.stop_cause!r}), "
            f"undisturbed {wanted.finish_reason} ({wanted.stop_cause!r})"
        )


def _usage_differences(received: Transcript, answer: Transcript) -> Iterator[str]:
    got, wanted = received.usage, answer.usage
    assert wanted is not None, "an undisturbed answer has usage"
    if got is None:
        yield "usage is missing"
        return
    if (got.prompt_tokens, got.completion_tokens) != (wanted.prompt_tokens, wanted.completion_tokens):
        yield f"{got}, undisturbed {wanted}"
    if not 0 <= got.cached_tokens <= got.prompt_tokens:
        yield f"{got.cached_tokens} of {got.prompt_tokens} prompt tokens were cached"


def _first_difference(got: Sequence[object], wanted: Sequence[object], *, is_whole: bool) -> int | None:
    """Where `got` leaves `wanted`; None if it does not (up to its own end, unless it must be whole)."""
    for at, (one, other) in enumerate(zip(got, wanted, strict=False)):
        if one != other:
            return at
    if len(got) > len(wanted) or (is_whole and len(got) < len(wanted)):
        return min(len(got), len(wanted))
    return None


def _at(token_ids: Sequence[int], at: int) -> str:
    return str(token_ids[at]) if at < len(token_ids) else "not there"


def _is_same_score(one: Score, other: Score) -> bool:
    """The same token, and numbers within rounding. At the edge of the most likely ones, two that are equally likely
    may change places."""
    if one.token != other.token or len(one.top) != len(other.top):
        return False
    if abs(one.logprob - other.logprob) > LOGPROB_TOLERANCE:
        return False
    edge = min(other.top.values(), default=0.0) + LOGPROB_TOLERANCE
    both = {**one.top, **other.top}
    return all(
        abs(one.top[token] - other.top[token]) <= LOGPROB_TOLERANCE
        if token in one.top and token in other.top
        else logprob <= edge
        for token, logprob in both.items()
    )
