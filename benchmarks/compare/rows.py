"""The rows of the comparison: what each is called, which way is better, what it has to reach. Pure."""

from dataclasses import dataclass
from enum import Enum


class Load(Enum):
    """What has to run for a row; each can be chosen alone."""

    START = "start"
    DECODE_1 = "decode-1"
    DECODE_8 = "decode-8"
    DECODE_32 = "decode-32"
    PREFILL = "prefill"
    SHARED = "shared"
    MIXED = "mixed"
    COST = "cost"
    MEMORY = "memory"


CONCURRENCIES = {Load.DECODE_1: 1, Load.DECODE_8: 8, Load.DECODE_32: 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on our figure, or on its ratio to the best peer's. At least, if more is better; else at most."""

    bound: float
    is_ratio: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    name: str
    unit: str
    load: Load
    more_is_better: bool = False
    goal: Goal | None = None  # of bfloat16
    goal_quantised: Goal | None = None


def _ratio(bound: float) -> Goal:
    return Goal(bound=bound, is_ratio=True)


def _at_most(bound: float) -> Goal:
    return Goal(bound=bound, is_ratio=False)


def _decode(load: Load, goal: float, goal_quantised: float) -> Row:
    return Row(
        name=f"output, {CONCURRENCIES[load]} at once",
        unit="tok/s",
        load=load,
        more_is_better=True,
        goal=_ratio(goal),
        goal_quantised=_ratio(goal_quantised),
    )


def _same(name: str, unit: str, load: Load, *, goal: Goal | None = None) -> Row:
    """The goal is the same for both numerics."""
    return Row(name=name, unit=unit, load=load, goal=goal, goal_quantised=goal)


START = _same("start to first token", "s", Load.START, goal=_at_most(5))
DECODE = (_decode(Load.DECODE_1, 1.1, 2.5), _decode(Load.DECODE_8, 1.2, 2.0), _decode(Load.DECODE_32, 1.2, 1.4))
PREFILL = Row(name="TTFT, prompt of 1,024", unit="ms", load=Load.PREFILL, goal=_ratio(1.0), goal_quantised=_ratio(0.8))
SHARED = _same("32 sharing 768 tokens, cold", "s", Load.SHARED, goal=_ratio(0.5))
SHARED_AGAIN = _same("32 sharing 768 tokens, again", "s", Load.SHARED)
ITL_BEFORE = _same("8 decode: ITL p50", "ms", Load.MIXED)
ITL_MAX = _same("8 decode, 1,500 arrive: ITL max", "ms", Load.MIXED, goal=_at_most(60))
TTFT_MIXED = _same("TTFT of the 1,500", "ms", Load.MIXED)
TTFT_SLOWDOWN = _same("TTFT of the 1,500, to alone", "x", Load.MIXED, goal=_at_most(1.5))
RSS = _same("memory, sum of RSS", "MiB", Load.MEMORY, goal=_at_most(2048))
PSS = _same("memory, shared pages once", "MiB", Load.MEMORY)
OUTSIDE_SHARE = Row(name="1 at once: CPU outside the model", unit="% of wall", load=Load.COST, goal=_at_most(15))
OUTSIDE_MS = Row(
    name="1 at once: CPU outside the model", unit="ms a step", load=Load.COST, goal_quantised=_at_most(1.2)
)
GAP_P50 = _same("worker idle, step ready: p50", "ms", Load.COST, goal=_at_most(0.15))
GAP_P99 = _same("worker idle, step ready: p99", "ms", Load.COST, goal=_at_most(1))
IDLE = _same("worker without a step, mean", "ms a step", Load.COST)

ALL = (
    *DECODE, PREFILL, SHARED, SHARED_AGAIN, ITL_BEFORE, ITL_MAX, TTFT_MIXED, TTFT_SLOWDOWN, START, RSS, PSS,
    OUTSIDE_SHARE, OUTSIDE_MS, GAP_P50, GAP_P99, IDLE,
)  # fmt: skip
