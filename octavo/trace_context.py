"""Trace context on the wire: 25 raw bytes inside Octavo, W3C traceparent and tracestate at its edge.

Works without a tracer provider, because a process that records nothing must still hand the context on.
"""

import re

from opentelemetry.trace import SpanContext, TraceFlags, TraceState

NUM_BYTES = 25  # 16 trace id, 8 span id, 1 flags

_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")


def context_to_bytes(context: SpanContext | None) -> bytes:
    """The 25 bytes of a context; b"" for none. tracestate is not carried inside Octavo."""
    if context is None or not context.is_valid:
        return b""
    return context.trace_id.to_bytes(16) + context.span_id.to_bytes(8) + bytes([context.trace_flags])


def context_from_bytes(data: bytes) -> SpanContext | None:
    """The inverse of context_to_bytes; None for b"" and for anything malformed."""
    if len(data) != NUM_BYTES:
        return None
    return _remote(int.from_bytes(data[:16]), int.from_bytes(data[16:24]), data[24], None)


def context_from_traceparent(header: str | None, tracestate: str | None = None) -> SpanContext | None:
    """The context in a W3C traceparent header; None when it is absent or malformed."""
    match = _TRACEPARENT.match((header or "").strip().lower())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        return None
    return _remote(int(trace_id, 16), int(span_id, 16), int(flags, 16), tracestate)


def traceparent(context: SpanContext) -> str:
    """The W3C traceparent header of a context."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _remote(trace_id: int, span_id: int, flags: int, tracestate: str | None) -> SpanContext | None:
    state = TraceState.from_header([tracestate]) if tracestate else None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)
    return context if context.is_valid else None
