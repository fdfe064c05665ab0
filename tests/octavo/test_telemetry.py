"""Spans: exported to a real collector when one is named, free of charge when none is."""

import time
from collections.abc import Iterator

import pytest

from octavo import span_export, telemetry
from tests.fakes.otlp_receiver import OtlpReceiver

SAMPLED = telemetry.context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
UNSAMPLED = telemetry.context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


def record(name: str, parent: telemetry.SpanContext | None = None) -> telemetry.SpanContext | None:
    return telemetry.record_span(name, parent=parent, start_ns=1_000, end_ns=2_000)


def test_a_recorded_span_arrives_with_all_it_was_given(receiver: OtlpReceiver):
    assert SAMPLED is not None
    with telemetry.configured("scheduler", instance_id="one", attributes={"octavo.model": "tiny"}):
        telemetry.record_span(
            "queue",
            parent=SAMPLED,
            start_ns=1_000,
            end_ns=2_000,
            attributes={"depth": 3},
            events=[telemetry.Event("preempted", 1_500, {"blocks_freed": 2})],
            links=[telemetry.link(SAMPLED)],
            error="lost",
        )
    span = receiver.named("queue")
    assert (span.service, span.kind, span.status) == ("octavo-scheduler", "INTERNAL", "ERROR")
    assert (span.trace_id, span.parent_span_id) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert (span.start_ns, span.end_ns, span.attributes, span.events) == (1_000, 2_000, {"depth": 3}, ["preempted"])
    assert span.links == [("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")]
    assert (span.resource["service.instance.id"], span.resource["octavo.model"]) == ("one", "tiny")


def test_children_hang_from_the_context_that_a_recorded_span_returns(receiver: OtlpReceiver):
    with telemetry.configured("scheduler"):
        record("prefill.chunk", record("prefill"))
    assert receiver.named("prefill.chunk").parent_span_id == receiver.named("prefill").span_id


def test_a_context_of_25_bytes_is_a_parent_in_the_next_process(receiver: OtlpReceiver):
    with telemetry.configured("kvcache"):
        data = telemetry.context_to_bytes(record("submit"))
        record("kv.plan", telemetry.context_from_bytes(data))
    assert receiver.named("kv.plan").parent_span_id == receiver.named("submit").span_id


def test_a_running_span_can_start_in_the_past_and_be_current(receiver: OtlpReceiver):
    with telemetry.configured("gateway"):
        span = telemetry.start_span("chat", kind="server", start_ns=5)
        with telemetry.use(span):
            record("tokenize", telemetry.current_context())
        assert telemetry.current_context() is None
        span.end()
    assert receiver.named("tokenize").parent_span_id == receiver.named("chat").span_id
    assert (receiver.named("chat").start_ns, receiver.named("chat").kind) == (5, "SERVER")


def test_an_exception_makes_the_span_around_it_an_error(receiver: OtlpReceiver):
    with telemetry.configured("worker"), pytest.raises(RuntimeError), telemetry.span("load_weights"):
        raise RuntimeError
    assert receiver.named("load_weights").status == "ERROR"


def test_a_span_without_parent_is_a_root_even_inside_another(receiver: OtlpReceiver):
    with telemetry.configured("scheduler"), telemetry.span("request"):
        record("step")
    assert receiver.named("step").parent_span_id == ""


def test_an_unsampled_parent_makes_no_span_and_is_handed_on(receiver: OtlpReceiver):
    with telemetry.configured("scheduler"):
        assert record("queue", UNSAMPLED) is UNSAMPLED
        inner = telemetry.start_span("decode", parent=UNSAMPLED)
        assert not inner.get_span_context().trace_flags.sampled
        inner.end()
    assert receiver.spans == []


def test_a_root_with_links_is_kept_exactly_if_one_of_them_is(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch):
    assert SAMPLED is not None
    assert UNSAMPLED is not None
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with telemetry.configured("scheduler"):
        for name, context in (("kept", SAMPLED), ("dropped", UNSAMPLED)):
            telemetry.record_span(name, parent=None, start_ns=1, end_ns=2, links=[telemetry.link(context)])
        record("without links")
    assert [span.name for span in receiver.spans] == ["kept"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_collector_nothing_is_made_and_contexts_are_handed_on(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with telemetry.configured("gateway"):
        assert not telemetry.is_enabled()
        assert record("queue", SAMPLED) is SAMPLED
        with telemetry.use(telemetry.start_span("chat", parent=SAMPLED)):
            assert telemetry.current_context() == SAMPLED


def test_a_dead_collector_delays_the_end_by_at_most_two_seconds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with telemetry.configured("worker"):
        record("step")
        started_at = time.monotonic()
    assert time.monotonic() - started_at < span_export.FLUSH_TIMEOUT_S + 0.5
