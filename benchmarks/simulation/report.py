"""What a simulation came to: percentiles, hit rate, preemptions, fairness, and the cores' own processor time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.simulation.cell import Cell

LEAST_CONTENDED = 0.05  # of all tokens must have been computed while all tenants waited, or shares mean nothing


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one figure."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles":
        """The nearest values; zeros if there are none."""
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, 0.0, 0.0)
        return cls(*(ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """In simulated time; the same for the same seed."""

    num_requests: int
    num_steps: int
    duration_s: float
    output_tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    hit_rate: float  # of the tokens looked up at first admissions, 0 to 1
    num_preemptions: int
    fairness: float | None  # Jain's index of tokens computed per tenant while all of them waited; None = hardly ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """In this machine's time."""

    scheduler_us: Percentiles  # per step
    kv_us: Percentiles  # per plan that was asked
    placement_us: Percentiles  # per request


def outcome(cell: Cell) -> Outcome:
    figures = [worker.core.figures for worker in cell.workers]
    num_query = sum(each.num_query_tokens for each in figures)
    served = [each for each in cell.served if each.token_at_s]
    return Outcome(
        num_requests=len(cell.served),
        num_steps=sum(each.num_steps for each in figures),
        duration_s=cell.now_s,
        output_tokens_per_s=sum(len(each.token_at_s) for each in served) / cell.now_s,
        ttft_ms=Percentiles.of(1e3 * each.ttft_s for each in served),
        itl_ms=Percentiles.of(1e3 * itl_s for each in served for itl_s in each.itls_s),
        hit_rate=sum(each.num_hit_tokens for each in figures) / num_query if num_query else 0.0,
        num_preemptions=sum(each.num_preemptions for each in figures),
        fairness=_fairness(cell),
    )


def _fairness(cell: Cell) -> float | None:
    counted = list(cell.tokens_by_tenant.values())
    return jain(counted) if sum(counted) >= LEAST_CONTENDED * cell.num_tokens else None


def cost(cell: Cell) -> Cost:
    return Cost(
        scheduler_us=Percentiles.of(cell.cpu.scheduler_us),
        kv_us=Percentiles.of(cell.cpu.kv_us),
        placement_us=Percentiles.of(cell.cpu.placement_us),
    )


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all get the same, 1/n when one gets everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
