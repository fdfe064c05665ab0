"""A real OTLP collector on a free port that keeps the spans it gets as simple records."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One exported span; ids are hex, `parent_span_id` is "" for a root, `links` are (trace id, span id)."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    kind: str  # INTERNAL, SERVER, CLIENT
    attributes: dict[str, Any]
    status: str  # UNSET, OK, ERROR
    events: list[str]
    links: list[tuple[str, str]]
    resource: dict[str, Any]
    start_ns: int
    end_ns: int


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """`with OtlpReceiver() as receiver`: export to `receiver.endpoint`, read `receiver.spans`."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self._arrived = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="otlp-receiver"))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._server.stop(None).wait()

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._arrived:
            self.spans += [record for part in request.resource_spans for record in _records(part)]
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, *names: str, timeout_s: float = 10) -> list[SpanRecord]:
        """Block until a span of each name has arrived; returns all spans so far. Not for use in an event loop."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: {s.name for s in self.spans} >= set(names), timeout_s)
        assert arrived, f"no span {set(names) - {s.name for s in self.spans}} within {timeout_s} s"
        return self.spans

    def named(self, name: str) -> SpanRecord:
        (found,) = (span for span in self.spans if span.name == name)
        return found


def _records(part: ResourceSpans) -> list[SpanRecord]:
    resource = _values(part.resource.attributes)
    return [_record(resource, span) for scope in part.scope_spans for span in scope.spans]


def _record(resource: dict[str, Any], span: Span) -> SpanRecord:
    return SpanRecord(
        service=resource["service.name"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        attributes=_values(span.attributes),
        status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        events=[event.name for event in span.events],
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource=resource,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


def _values(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "", None) for a in attributes}
