"""Trace context on the wire, with no tracer provider anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import telemetry

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_is_25_bytes_trace_span_flags():
    context = telemetry.context_from_traceparent(TRACEPARENT)
    data = telemetry.context_to_bytes(context)
    assert data.hex() == "0af7651916cd43dd8448eb211c80319c" + "b7ad6b7169203331" + "01"


@given(st.binary(min_size=25, max_size=25))
def test_bytes_survive_the_round_trip_unless_they_name_no_span(data: bytes):
    context = telemetry.context_from_bytes(data)
    is_nowhere = not any(data[:16]) or not any(data[16:24])
    assert telemetry.context_to_bytes(context) == (b"" if is_nowhere else data)


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 24, b"x" * 26])
def test_malformed_bytes_are_no_context(data: bytes):
    assert telemetry.context_from_bytes(data) is None


def test_no_context_is_no_bytes():
    assert telemetry.context_to_bytes(None) == b""


def test_a_traceparent_survives_the_round_trip_with_its_tracestate():
    context = telemetry.context_from_traceparent(TRACEPARENT, "vendor=1")
    assert context is not None
    assert context.is_remote
    assert telemetry.traceparent(context) == TRACEPARENT
    assert context.trace_state.to_header() == "vendor=1"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        "ff" + TRACEPARENT[2:],
        TRACEPARENT + "-more",
        TRACEPARENT.replace("b7ad6b7169203331", "0" * 16),
    ],
)
def test_a_malformed_traceparent_is_no_context(header: str | None):
    assert telemetry.context_from_traceparent(header) is None


def test_a_later_version_may_carry_more():
    assert telemetry.context_from_traceparent("01" + TRACEPARENT[2:] + "-more") is not None
