"""Medians, the best peer and the goals."""

import pytest

from benchmarks.compare import rows, table
from benchmarks.compare.rows import Row
from benchmarks.compare.servers import Server

OURS = Server(name="octavo", command=(), port=1, is_ours=True)
OURS_QUANTISED = Server(name="octavo-q", command=(), port=1, is_ours=True, is_quantised=True)
SLOW = Server(name="slow", command=(), port=1)
FAST = Server(name="fast", command=(), port=1)
FASTEST_QUANTISED = Server(name="fast-q", command=(), port=1, is_quantised=True)
(ONE_AT_ONCE, *_) = rows.DECODE


def line_of(row: Row, text: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {row.name}, {row.unit}"))
    return line


def test_best_peer_has_most_tokens_per_second_and_least_milliseconds():
    medians = {"slow": 10.0, "fast": 20.0}
    assert table.best_peer(ONE_AT_ONCE, medians) == "fast"
    assert table.best_peer(rows.PREFILL, medians) == "slow"
    assert table.best_peer(rows.PREFILL, {}) is None


@pytest.mark.parametrize(
    ("row", "median", "is_met"),
    [
        (ONE_AT_ONCE, 110.0, True),
        (ONE_AT_ONCE, 109.0, False),
        (rows.PREFILL, 100.0, True),
        (rows.PREFILL, 101.0, False),
    ],
)
def test_ratio_goal_is_a_floor_for_throughput_and_a_ceiling_for_latency(row: Row, median: float, is_met: bool):
    verdict = table.judge(row, OURS, median=median, peers={"fast": 100.0})
    assert verdict.ratio == pytest.approx(median / 100)
    assert verdict.is_met is is_met


@pytest.mark.parametrize(("median", "is_met"), [(60.0, True), (60.1, False)])
def test_absolute_goal_needs_no_peer(median: float, is_met: bool):
    verdict = table.judge(rows.ITL_MAX, OURS, median=median, peers={})
    assert verdict.ratio is None
    assert verdict.is_met is is_met


def test_ratio_goal_without_a_peer_is_neither_met_nor_missed():
    assert table.judge(ONE_AT_ONCE, OURS, median=1.0, peers={}).is_met is None


def test_quantised_has_its_own_goal():
    assert table.judge(ONE_AT_ONCE, OURS_QUANTISED, median=200.0, peers={"fast": 100.0}).is_met is False
    assert table.judge(ONE_AT_ONCE, OURS, median=200.0, peers={"fast": 100.0}).is_met is True


def test_bfloat16_is_not_compared_with_quantised_peers_but_quantised_is_with_all():
    servers = [OURS, OURS_QUANTISED, SLOW, FAST, FASTEST_QUANTISED]
    tokens_per_s = {"octavo": 100.0, "octavo-q": 300.0, "slow": 50.0, "fast": 80.0, "fast-q": 200.0}
    text = table.markdown(servers, {name: {ONE_AT_ONCE: [value]} for name, value in tokens_per_s.items()})
    assert "| 1.25 of fast; >= 1.1x: met | 1.50 of fast-q; >= 2.5x: **missed** |" in line_of(ONE_AT_ONCE, text)


def test_cell_is_the_median_with_lowest_and_highest():
    text = table.markdown([FAST], {"fast": {rows.PREFILL: [360.0, 1000.0, 401.0]}})
    assert "| 401 (360..1,000) |" in line_of(rows.PREFILL, text)


def test_row_that_nobody_measured_is_left_out_and_a_hole_is_a_dash():
    text = table.markdown([FAST, SLOW], {"fast": {rows.START: [1.25]}})
    assert line_of(rows.START, text) == "| start to first token, s | 1.25 | - |"
    assert rows.PREFILL.name not in text
