"""Turns the moments at which tokens arrived into the figures that serving benchmarks report. Pure."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(slots=True, kw_only=True)
class Sample:
    """One request as its client saw it; times in seconds on one clock."""

    sent_at: float
    arrived_at: list[float] = field(default_factory=list)  # a moment per message that carried text
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.arrived_at[0] - self.sent_at)

    @property
    def e2el_ms(self) -> float:
        return 1e3 * (self.arrived_at[-1] - self.sent_at)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return 1e3 * (self.arrived_at[-1] - self.arrived_at[0]) / (self.num_output_tokens - 1)

    @property
    def itls_ms(self) -> list[float]:
        """The gaps between messages."""
        return [1e3 * (after - before) for before, after in itertools.pairwise(self.arrived_at)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One kind of latency over all requests, in milliseconds."""

    mean: float
    median: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run in numbers. A latency is None if no request had one."""

    duration_s: float
    num_completed: int
    num_failed: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_ms: Latency | None
    tpot_ms: Latency | None
    itl_ms: Latency | None
    e2el_ms: Latency | None
    goodput_per_s: float | None  # requests per second that met every limit of the goodput; None if none was set

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summarize(samples: Sequence[Sample], *, duration_s: float, goodput: Mapping[str, float] | None = None) -> Figures:
    """The figures of a run that took `duration_s`. `goodput` maps ttft, tpot or e2el to its limit in milliseconds."""
    done = [sample for sample in samples if sample.error is None and sample.arrived_at]
    num_prompt_tokens = sum(sample.num_prompt_tokens for sample in done)
    num_output_tokens = sum(sample.num_output_tokens for sample in done)
    good = [sample for sample in done if _is_good(sample, goodput or {})]
    return Figures(
        duration_s=duration_s,
        num_completed=len(done),
        num_failed=len(samples) - len(done),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=sum(sample.num_cached_tokens for sample in done),
        requests_per_s=len(done) / duration_s,
        output_tokens_per_s=num_output_tokens / duration_s,
        total_tokens_per_s=(num_prompt_tokens + num_output_tokens) / duration_s,
        ttft_ms=latency([sample.ttft_ms for sample in done]),
        tpot_ms=latency([sample.tpot_ms for sample in done if sample.tpot_ms is not None]),
        itl_ms=latency([gap for sample in done for gap in sample.itls_ms]),
        e2el_ms=latency([sample.e2el_ms for sample in done]),
        goodput_per_s=len(good) / duration_s if goodput else None,
    )


def latency(values_ms: Sequence[float]) -> Latency | None:
    """Mean, median, 99th percentile and maximum; None of nothing."""
    if not values_ms:
        return None
    return Latency(
        mean=statistics.fmean(values_ms),
        median=statistics.median(values_ms),
        p99=percentile(values_ms, 99),
        max=max(values_ms),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks, as numpy does by default."""
    ordered = sorted(values)
    rank = percent / 100 * (len(ordered) - 1)
    below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return below + (above - below) * (rank - math.floor(rank))


def hit_rate(num_hit: float, num_queried: float) -> float | None:
    """The share of prompt tokens that were cached; None if none was looked up."""
    return num_hit / num_queried if num_queried else None


def _is_good(sample: Sample, limits: Mapping[str, float]) -> bool:
    measured = {"ttft": sample.ttft_ms, "tpot": sample.tpot_ms, "e2el": sample.e2el_ms}
    return all((measured[name] or 0.0) <= limit_ms for name, limit_ms in limits.items())
