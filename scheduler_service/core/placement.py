"""Chooses the worker of a request, and which requests go to a worker that has nothing to do. Pure: matches, loads and
random draws are given.
"""

import enum
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A worker that may be given requests, and what it has."""

    worker_id: str
    num_requests: int
    num_waiting: int
    num_queued_tokens: int


class Share(enum.Enum):
    """How much of its queue a worker gives up."""

    ALL = "all"  # it drains
    HALF = "half"  # of the tokens to be computed there: another one is idle


def choose(candidates: Sequence[Candidate], draws: tuple[float, float]) -> Candidate:
    """The worker with the least work ahead. Among ties, the less occupied of two drawn ones.

    `draws` are two random numbers in [0, 1).
    """
    assert candidates, "no worker to choose from"
    least = min(candidate.num_tokens_ahead for candidate in candidates)
    tied = [candidate for candidate in candidates if candidate.num_tokens_ahead == least]
    first, second = (tied[int(draw * len(tied))] for draw in draws)
    return second if second.num_requests < first.num_requests else first


def donor(loads: Sequence[Load]) -> Load | None:
    """The worker whose waiting requests should look for another one: the longest queue, if somebody is idle."""
    if all(load.num_requests for load in loads):
        return None
    queued = [load for load in loads if load.num_waiting]
    return max(queued, key=lambda load: load.num_queued_tokens, default=None)


def num_to_move(num_tokens: Sequence[int], num_queued_tokens: int, *, share: Share) -> int:
    """How many of the requests that can move do, from the front of the queue; `num_tokens` are theirs.

    HALF takes the fewest that hold half of all the tokens queued there, those of running requests included.
    """
    if share is Share.ALL:
        return len(num_tokens)
    num_moved_tokens = 0
    for num_moved, tokens in enumerate(num_tokens):
        if 2 * num_moved_tokens >= num_queued_tokens:
            return num_moved
        num_moved_tokens += tokens
    return len(num_tokens)
