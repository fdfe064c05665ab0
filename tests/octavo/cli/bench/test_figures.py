"""The arithmetic of the bench, on samples made by hand."""

import pytest

from octavo.cli.bench import figures
from octavo.cli.bench.figures import Latency, Sample


def sample(sent_at: float, *arrived_at: float, num_output_tokens: int | None = None) -> Sample:
    return Sample(
        sent_at=sent_at, arrived_at=list(arrived_at), num_prompt_tokens=10, num_cached_tokens=4,
        num_output_tokens=len(arrived_at) if num_output_tokens is None else num_output_tokens,
    )  # fmt: skip


def test_latencies_of_one_request():
    one = sample(1.0, 1.5, 1.6, 1.9)
    assert one.ttft_ms == pytest.approx(500)
    assert one.e2el_ms == pytest.approx(900)
    assert one.tpot_ms == pytest.approx(200)
    assert one.itls_ms == pytest.approx([100, 300])


def test_time_per_token_counts_tokens_not_messages():
    assert sample(0.0, 1.0, 2.0, num_output_tokens=11).tpot_ms == pytest.approx(100)


def test_single_token_has_no_time_per_token():
    assert sample(0.0, 1.0).tpot_ms is None


def test_summary_counts_only_what_was_answered():
    failed = Sample(sent_at=0.0, error="refused")
    summary = figures.summarize([sample(0.0, 1.0, 2.0), sample(1.0, 2.0, 3.0), failed], duration_s=4.0)
    assert (summary.num_completed, summary.num_failed) == (2, 1)
    assert (summary.requests_per_s, summary.output_tokens_per_s, summary.total_tokens_per_s) == (0.5, 1.0, 6.0)
    assert summary.ttft_ms == Latency(mean=1000.0, median=1000.0, p99=1000.0, max=1000.0)
    assert summary.num_cached_tokens == 8


def test_run_in_which_all_failed_has_no_latency():
    summary = figures.summarize([Sample(sent_at=0.0, error="refused")], duration_s=1.0)
    assert summary.ttft_ms is summary.tpot_ms is summary.itl_ms is summary.e2el_ms is None


def test_percentile_lies_between_the_nearest_ranks():
    assert figures.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert figures.percentile(range(1, 102), 99) == 100.0
    assert figures.percentile([7.0], 99) == 7.0


def test_latency_of_many_values():
    found = figures.latency([float(value) for value in range(101)])
    assert found == Latency(mean=50.0, median=50.0, p99=99.0, max=100.0)


@pytest.mark.parametrize(("limits", "goodput"), [
    ({"ttft": 600}, 0.5), ({"ttft": 400}, 0.0), ({"ttft": 600, "tpot": 100}, 0.0), ({}, None), ({"e2el": 900.1}, 0.5),
])  # fmt: skip
def test_goodput_counts_requests_within_every_limit(limits: dict[str, float], goodput: float | None):
    summary = figures.summarize([sample(1.0, 1.5, 1.6, 1.9)], duration_s=2.0, goodput=limits)
    assert summary.goodput_per_s == goodput


def test_hit_rate_of_nothing_is_none():
    assert figures.hit_rate(0, 0) is None
    assert figures.hit_rate(1, 4) == 0.25
