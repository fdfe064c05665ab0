"""Prompts and arrivals: what they share, what differs, and how they spread."""

import itertools
import statistics

import pytest

from octavo.cli.bench.workload import Workload, arrival_times

VOCABULARY = range(1000, 2000)


def test_prompts_have_their_length_and_share_only_the_prefix():
    first, second = Workload(num_prompts=2, input_len=20, prefix_len=8).prompts(VOCABULARY)
    assert len(first) == len(second) == 20
    assert first[:8] == second[:8]
    assert first[8:] != second[8:]
    assert set(first) <= set(VOCABULARY)


def test_seed_decides_the_prompts():
    def prompts(seed: int) -> list[list[int]]:
        return Workload(num_prompts=3, input_len=9, seed=seed).prompts(VOCABULARY)

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)


def test_prefix_must_leave_room():
    with pytest.raises(ValueError, match="must be shorter"):
        Workload(num_prompts=1, input_len=8, prefix_len=8)


def test_arrivals_begin_at_once_and_keep_the_rate():
    times = arrival_times(4000, request_rate=50.0, burstiness=1.0, seed=3)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / 3999 == pytest.approx(1 / 50, rel=0.1)


def test_burstiness_is_the_shape_of_the_gaps():
    def spread(burstiness: float) -> float:
        times = arrival_times(4000, request_rate=1.0, burstiness=burstiness, seed=3)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return statistics.stdev(gaps) / statistics.fmean(gaps)

    assert spread(0.25) == pytest.approx(2.0, rel=0.15)
    assert spread(1.0) == pytest.approx(1.0, rel=0.15)
    assert spread(16.0) == pytest.approx(0.25, rel=0.15)
