"""The undisturbed answers: each request alone with its client's patience, before anything goes wrong.

They must be right in themselves as well: a server that always miscounts would agree with itself.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.attempt import Ending, Outcome
from tests.chaos.clients import Clients
from tests.chaos.requests import Request
from tests.chaos.transcript import Choice, Transcript

_STOP, _LENGTH = ("stop", "FINISH_REASON_STOP"), ("length", "FINISH_REASON_LENGTH")


async def undisturbed(clients: Clients, requests: Sequence[Request], *, at_once: int = 16) -> Mapping[str, Transcript]:
    """Answers by the names of requests, `at_once` asked for at a time. Raises AssertionError if one is not right."""
    gate = asyncio.Semaphore(at_once)

    async def one(request: Request) -> Transcript:
        async with gate:
            outcome = Outcome(request=request.patient, stream=0)
            await clients.ask(outcome)
        attempt = outcome.last
        assert attempt.ending is Ending.COMPLETE, f"{request.name}: {attempt.ending.value} {attempt.detail}"
        wrong = [*attempt.transcript.violations, *contradictions(request, attempt.transcript)]
        assert not wrong, f"{request.name}: {'; '.join(wrong)}"
        return attempt.transcript

    answers = await asyncio.gather(*(one(request) for request in requests))
    return {request.name: answer for request, answer in zip(requests, answers, strict=True)}


def contradictions(request: Request, answer: Transcript) -> Iterator[str]:
    """Where a complete answer is not what was asked for, or does not agree with itself."""
    for index, choice in enumerate(answer.choices):
        yield from (f"choice {index}: {wrong}" for wrong in _choice_contradictions(request, choice))
    num_tokens = sum(len(choice.token_ids) for choice in answer.choices)
    if answer.usage is None:
        yield "usage is missing"
    elif answer.usage.completion_tokens != num_tokens:
        yield f"usage counts {answer.usage.completion_tokens} tokens, {num_tokens} came"
    if request.temperature == 0 and any(choice.token_ids != answer.choices[0].token_ids for choice in answer.choices):
        yield "greedy answers of one request differ"


def _choice_contradictions(request: Request, choice: Choice) -> Iterator[str]:
    if choice.finish_reason in _LENGTH and len(choice.token_ids) != request.max_tokens:
        yield f"finished at {len(choice.token_ids)} tokens because of a limit of {request.max_tokens}"
    if choice.finish_reason not in (*_STOP, *_LENGTH):
        yield f"finished with {choice.finish_reason}"
    if choice.finish_reason in _STOP and request.ignore_eos and choice.stop_cause not in request.stop:
        yield f"stopped by {choice.stop_cause!r}"
    if any(stop in choice.text for stop in request.stop):
        yield f"a stop sequence is in {choice.text!r}"
    num_scores = 0 if request.top_logprobs is None else len(choice.token_ids)
    if len(choice.scores) != num_scores:
        yield f"{len(choice.scores)} logprobs for {len(choice.token_ids)} tokens"
