"""The figures of the probes, also of few of them."""

from benchmarks.probes import _figures


def test_p99_of_few_probes_is_not_above_the_longest():
    figures = _figures([0.001] * 58 + [0.020])
    assert figures["p99_ms"] <= figures["max_ms"] == 20.0
