"""Spans of this process, sent to an OTLP collector when one is named in the environment.

Knows OpenTelemetry; what spans mean is their makers' business. Without a collector nothing is created, every call
costs next to nothing, and an incoming trace context can still be read and handed on.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import Attributes, AttributeValue

import octavo
from octavo.trace_context import context_from_bytes, context_from_traceparent, context_to_bytes, traceparent

__all__ = [
    "Event", "Link", "Span", "SpanContext", "configured", "context_from_bytes", "context_from_traceparent",
    "context_to_bytes", "current_context", "is_enabled", "link", "now_ns", "record_span", "span", "start_span",
    "traceparent", "use",
]  # fmt: skip

Kind = Literal["internal", "server", "client"]

_KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
}
_tracer: trace.Tracer | None = None  # set by configured(); None is off


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment within a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@contextmanager
def configured(
    service_name: str, *, instance_id: str | None = None, attributes: Mapping[str, AttributeValue] | None = None
) -> Iterator[None]:
    """Send this process's spans as `octavo-<service_name>` until the block ends; then flush, within 2 s.

    Does nothing unless OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) is set, and nothing when
    OTEL_SDK_DISABLED is true. OTEL_TRACES_SAMPLER decides which root spans are kept.
    """
    global _tracer  # noqa: PLW0603 - the one switch of a process; is_enabled() must be a plain bool
    if not _is_wanted(os.environ):
        yield
        return
    assert _tracer is None, "tracing is configured twice in one process"
    from octavo import span_export  # noqa: PLC0415 - a quarter of the start of a process that sends nothing

    provider = span_export.provider(service_name, instance_id or uuid.uuid4().hex, attributes or {})
    _tracer = provider.get_tracer("octavo", octavo.__version__)
    try:
        yield
    finally:
        _tracer = None
        span_export.shut_down(provider)


def is_enabled() -> bool:
    """Whether spans are made at all; ask before computing attributes for one."""
    return _tracer is not None


def now_ns() -> int:
    """Wall clock for the start and end of spans."""
    return time.time_ns()


def current_context() -> SpanContext | None:
    """The context of the span that the running task is in."""
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def link(context: SpanContext, attributes: Attributes = None) -> Link:
    """Points a span at one of another trace."""
    return Link(context, attributes)


def start_span(
    name: str,
    *,
    parent: SpanContext | None = None,
    kind: Kind = "internal",
    attributes: Attributes = None,
    start_ns: int | None = None,
    links: Sequence[Link] = (),
) -> Span:
    """A running span, a root one without `parent`; call `end()` on it. It does not become the current span.

    When nothing is recorded its context is `parent`'s, so that handing it on keeps the caller's trace whole.
    """
    if _tracer is None:
        return NonRecordingSpan(parent or trace.INVALID_SPAN_CONTEXT)
    return _tracer.start_span(name, _context(parent), _KINDS[kind], attributes, links, start_ns)


def record_span(  # noqa: PLR0913 - all but one are named
    name: str,
    *,
    parent: SpanContext | None,
    start_ns: int,
    end_ns: int,
    attributes: Attributes = None,
    events: Sequence[Event] = (),
    links: Sequence[Link] = (),
    error: str | None = None,
    kind: Kind = "internal",
) -> SpanContext | None:
    """Make a span that is already over; a root one without `parent`. Returns its context, to hang children from.

    Makes nothing, and returns `parent`, when tracing is off or `parent` is not sampled.
    """
    if _tracer is None or (parent is not None and not parent.trace_flags.sampled):
        return parent
    made = _tracer.start_span(name, _context(parent), _KINDS[kind], attributes, links, start_ns)
    for event in events:
        made.add_event(event.name, event.attributes, event.at_ns)
    if error is not None:
        made.set_status(Status(StatusCode.ERROR, error))
    made.end(end_ns)
    return made.get_span_context()


def use(span: Span) -> AbstractContextManager[Span]:
    """Make `span` the current one inside the block, for logs and current_context(); does not end it."""
    return trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


@contextmanager
def span(
    name: str, *, parent: SpanContext | None = None, kind: Kind = "internal", attributes: Attributes = None
) -> Iterator[Span]:
    """A span around a block, current inside it; an exception that leaves the block makes it an error."""
    started = start_span(name, parent=parent, kind=kind, attributes=attributes)
    try:
        with use(started):
            yield started
    except Exception as exc:
        started.set_status(Status(StatusCode.ERROR, type(exc).__name__))
        raise
    finally:
        started.end()


def _context(parent: SpanContext | None) -> Context:
    """An explicit parent, or an explicit none: the ambient span is never taken by accident."""
    return trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent is not None else Context()


def _is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return bool(environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
