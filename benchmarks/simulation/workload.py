"""Who asks when and with what: arrivals, shared prefixes, conversations of several turns. The same for the same seed.

A conversation's draws depend on the seed and its number only, never on how fast it is served; the time of its second
turn does, as with people.
"""

import enum
import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass


class Arrivals(enum.StrEnum):
    """How conversations begin; all at the same mean rate."""

    POISSON = "poisson"  # independent of each other
    GAMMA = "gamma"  # gaps of a Gamma distribution with a coefficient of variation of 3: clumps
    MMPP = "mmpp"  # a Poisson process that switches between quiet and five times as busy


GAMMA_CV = 3.0
BUSY_FACTOR = 5.0
BUSY_SHARE = 0.2  # of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked for. Lengths are means of geometric draws, system prompts excepted."""

    rate_per_s: float  # conversations
    duration_s: float  # in which conversations begin; all are served to their end
    arrivals: Arrivals = Arrivals.POISSON
    burst_s: float = 2.0  # mean length of a busy spell of MMPP
    num_system_prompts: int = 8
    system_tokens: int = 512
    user_tokens: int = 128
    output_tokens: int = 128
    max_output_tokens: int = 512
    turns: float = 1.5
    think_s: float = 5.0
    num_tenants: int = 4
    heavy_share: float = 0.4  # of the conversations are the first tenant's; the others share the rest
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn adds to a conversation."""

    user_tokens: "array[int]"
    output_tokens: "array[int]"  # what the model will answer
    think_s: float  # before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One user: the second turn's prompt is all that was said before, and something new."""

    number: int
    start_s: float
    tenant: str
    system_tokens: "array[int]"
    turns: tuple[Turn, ...]


def conversations(workload: Workload) -> Iterator[Conversation]:
    """In order of their start."""
    system_prompts = [
        _tokens(random.Random(f"{workload.seed}/system/{number}"), workload.system_tokens)
        for number in range(workload.num_system_prompts)
    ]
    for number, start_s in enumerate(_starts(workload)):
        rng = random.Random(f"{workload.seed}/conversation/{number}")
        yield Conversation(
            number=number,
            start_s=start_s,
            tenant=_tenant(rng, workload),
            system_tokens=rng.choice(system_prompts) if system_prompts else array("H"),
            turns=tuple(_turn(rng, workload) for _ in range(_geometric(rng, workload.turns))),
        )


def _starts(workload: Workload) -> Iterator[float]:
    rng, now_s = random.Random(f"{workload.seed}/arrivals"), 0.0
    gaps = _gaps(rng, workload)
    while (now_s := now_s + next(gaps)) < workload.duration_s:
        yield now_s


def _gaps(rng: random.Random, workload: Workload) -> Iterator[float]:
    """Seconds between conversations, for ever."""
    rate = workload.rate_per_s
    match workload.arrivals:
        case Arrivals.POISSON:
            while True:
                yield rng.expovariate(rate)
        case Arrivals.GAMMA:
            shape = 1 / GAMMA_CV**2
            while True:
                yield rng.gammavariate(shape, 1 / (rate * shape))
        case Arrivals.MMPP:
            yield from _switching_gaps(rng, rate, workload.burst_s)


def _switching_gaps(rng: random.Random, rate: float, burst_s: float) -> Iterator[float]:
    """Gaps under two rates; what is left of a gap when the rate changes is drawn anew, which Poisson allows."""
    quiet_rate = rate / (1 + BUSY_SHARE * (BUSY_FACTOR - 1))
    is_busy, gap_s = rng.random() < BUSY_SHARE, 0.0
    while True:
        mean_s = burst_s if is_busy else burst_s * (1 - BUSY_SHARE) / BUSY_SHARE
        left_s = rng.expovariate(1 / mean_s)
        now_rate = quiet_rate * (BUSY_FACTOR if is_busy else 1)
        while (drawn_s := rng.expovariate(now_rate)) < left_s:
            left_s -= drawn_s
            yield gap_s + drawn_s
            gap_s = 0.0
        gap_s += left_s
        is_busy = not is_busy


def _turn(rng: random.Random, workload: Workload) -> Turn:
    num_output = min(_geometric(rng, workload.output_tokens), workload.max_output_tokens)
    return Turn(
        user_tokens=_tokens(rng, _geometric(rng, workload.user_tokens)),
        output_tokens=_tokens(rng, num_output),
        think_s=rng.expovariate(1 / workload.think_s),
    )


def _tenant(rng: random.Random, workload: Workload) -> str:
    is_heavy = workload.num_tenants == 1 or rng.random() < workload.heavy_share
    return "t0" if is_heavy else f"t{rng.randrange(1, workload.num_tenants)}"


def _geometric(rng: random.Random, mean: float) -> int:
    """At least 1."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / mean))


def _tokens(rng: random.Random, count: int) -> "array[int]":
    return array("H", rng.randbytes(2 * count))
