"""Prompts and arrival times of one run, drawn from a seed. Pure: knows no server and no clock."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every request of a run has in common, in tokens."""

    num_prompts: int
    input_len: int  # whole prompt, shared prefix included
    prefix_len: int = 0  # tokens that all prompts begin with
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_len < self.input_len:
            raise ValueError(
                f"the shared prefix ({self.prefix_len}) must be shorter than the prompt ({self.input_len})"
            )

    def prompts(self, vocabulary: Sequence[int]) -> list[list[int]]:
        """Token ids drawn from `vocabulary`; all alike up to prefix_len, distinct afterwards."""
        draw = random.Random(self.seed)
        prefix = draw.choices(vocabulary, k=self.prefix_len)
        own_len = self.input_len - self.prefix_len
        return [prefix + draw.choices(vocabulary, k=own_len) for _ in range(self.num_prompts)]


def arrival_times(num_requests: int, *, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start at which requests are sent, at `request_rate` per second on average.

    Gaps are gamma distributed with shape `burstiness`: 1 is a Poisson process, below 1 bursts, above 1 is more even.
    """
    draw = random.Random(seed)
    scale = 1.0 / (request_rate * burstiness)
    times = [0.0]
    while len(times) < num_requests:
        times.append(times[-1] + draw.gammavariate(burstiness, scale))
    return times[:num_requests]
