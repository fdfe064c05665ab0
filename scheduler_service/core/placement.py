"""Chooses the worker of a request, once, at submit. Pure: matches, loads and random draws are given."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that could take a request."""

    worker_id: str
    num_uncached_tokens: int  # of the request, on this worker
    num_queued_tokens: int  # still to be computed for requests that are already there
    num_requests: int

    @property
    def num_tokens_ahead(self) -> int:
        return self.num_uncached_tokens + self.num_queued_tokens


def choose(candidates: Sequence[Candidate], draws: tuple[float, float]) -> Candidate:
    """The worker with the least work ahead. Among ties, the less occupied of two drawn ones.

    `draws` are two random numbers in [0, 1).
    """
    assert candidates, "no worker to choose from"
    least = min(candidate.num_tokens_ahead for candidate in candidates)
    tied = [candidate for candidate in candidates if candidate.num_tokens_ahead == least]
    first, second = (tied[int(draw * len(tied))] for draw in draws)
    return second if second.num_requests < first.num_requests else first
