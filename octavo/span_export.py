"""Where spans go: the SDK's provider with its sampler and the exporter, imported only by a process that sends some."""

import platform
import threading
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes, AttributeValue

import octavo
from octavo import logs

FLUSH_TIMEOUT_S = 2.0  # how long a leaving process may wait for its last spans to be sent

_log = logs.get(__name__)


def provider(service_name: str, instance_id: str, attributes: Mapping[str, AttributeValue]) -> TracerProvider:
    """Spans made with it are sent in batches to the collector that the environment names."""
    resource = Resource.create(
        {
            "service.name": f"octavo-{service_name}",
            "service.version": octavo.__version__,
            "service.instance.id": instance_id,
            "host.name": platform.node(),
            **attributes,
        }
    )
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.sampler = LinkedSampler(made.sampler)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _log.info("tracing_started", service_name=f"octavo-{service_name}", sampler=made.sampler.get_description())
    return made


def shut_down(provider: TracerProvider) -> None:
    """Send what is queued, in a thread that is abandoned after FLUSH_TIMEOUT_S: a dead collector holds nobody up."""
    flush = threading.Thread(target=provider.shutdown, name="octavo-span-flush", daemon=True)
    flush.start()
    flush.join(FLUSH_TIMEOUT_S)
    if flush.is_alive():
        _log.warning("spans_dropped_at_exit", waited_s=FLUSH_TIMEOUT_S)


class LinkedSampler(Sampler):
    """Keeps a root span with links exactly if one of the spans it links is kept; asks `others` about the rest.

    A step links the requests in it, so a step is recorded only for somebody's trace.
    """

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(  # noqa: PLR0917 - the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if links and not trace.get_current_span(parent_context).get_span_context().is_valid:
            is_kept = any(link.context.trace_flags.sampled for link in links)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if is_kept else Decision.DROP, attributes)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"linked or {self._others.get_description()}"
