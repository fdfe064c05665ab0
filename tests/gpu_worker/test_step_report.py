"""Steps are counted, and a traced one shows where its time went."""

import time

import pytest

from gpu_worker import step_report
from gpu_worker.core.step import StepFacts, StepResult, StepStatus, StepTiming
from gpu_worker.startup_phases import Phases
from octavo import metrics, telemetry
from octavo.trace_context import context_from_bytes
from tests.fakes.otlp_receiver import OtlpReceiver

TIMING = StepTiming(gap_us=50, prepare_us=400, forward_us=9000, sample_us=300, idle_us=50)
TRACE = bytes(range(1, 25)) + b"\x01"
REQUEST, UNSAMPLED = bytes(range(101, 125)) + b"\x01", bytes(range(131, 155)) + b"\x00"


def result_of(status: StepStatus, trace_context: bytes = b"", joined: tuple[bytes, ...] = ()) -> StepResult:
    facts = StepFacts(
        ended_ns=time.time_ns(),
        num_rows=3,
        num_tokens=40,
        num_decode_rows=2,
        trace_context=trace_context,
        joined=joined,
    )
    return StepResult(
        session=1, step=8, seq=7, status=status, timing=TIMING, facts=facts if status is StepStatus.OK else None
    )


def value_of(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_every_step_is_counted_and_its_phases_measured() -> None:
    phase, steps = "octavo_worker_step_duration_seconds_sum", "octavo_worker_steps_total"
    before = value_of(phase, phase="forward"), value_of(steps, status="ok"), value_of(steps, status="void")
    step_report.report(result_of(StepStatus.OK))
    step_report.report(result_of(StepStatus.VOID))
    after = value_of(phase, phase="forward"), value_of(steps, status="ok"), value_of(steps, status="void")
    assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx([0.009, 1, 1])
    assert value_of(steps, status="fault") == 0


def test_a_traced_step_has_its_phases_as_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with telemetry.configured("worker"):
            step_report.report(result_of(StepStatus.OK, TRACE))
            step_report.report(result_of(StepStatus.OK))
        spans = {span.name: span for span in receiver.wait_for("worker.step", "forward", "sample")}
    assert len(spans) == 3
    step, parent = spans["worker.step"], context_from_bytes(TRACE)
    assert parent is not None
    assert (step.service, step.parent_span_id) == ("octavo-worker", f"{parent.span_id:016x}")
    assert {spans[name].parent_span_id for name in ("forward", "sample")} == {step.span_id}
    assert (step.attributes["octavo.step.id"], step.attributes["octavo.step.batch_tokens"]) == (8, 40)
    assert spans["forward"].end_ns - spans["forward"].start_ns == 9_000_000
    assert step.end_ns - step.start_ns == 9_700_000


def test_a_request_finds_its_first_step_in_its_own_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with telemetry.configured("worker"):
            step_report.report(result_of(StepStatus.OK, TRACE, joined=(REQUEST, UNSAMPLED)))
            step_report.report(result_of(StepStatus.OK, joined=(UNSAMPLED,)))
        receiver.wait_for("worker.first_step")
    (first,) = (span for span in receiver.spans if span.name == "worker.first_step")
    request, step = context_from_bytes(REQUEST), context_from_bytes(TRACE)
    assert request is not None
    assert step is not None
    assert (first.trace_id, first.parent_span_id) == (f"{request.trace_id:032x}", f"{request.span_id:016x}")
    assert first.links == [(f"{step.trace_id:032x}", f"{step.span_id:016x}")]


def test_the_start_is_a_trace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with telemetry.configured("worker"):
            phases = Phases()
            for name in ("load_weights", "allocate_kv", "warmup"):
                with phases.phase(name):
                    pass
            phases.end()
        spans = {span.name: span for span in receiver.wait_for("startup", "warmup")}
    assert spans["startup"].parent_span_id == ""
    assert {spans[name].parent_span_id for name in phases.seconds} == {spans["startup"].span_id}
