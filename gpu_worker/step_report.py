"""Metrics and spans of steps, made after the fact in the event loop, so that the compute thread pays for none."""

from prometheus_client import Counter, Histogram

from gpu_worker.core.step import StepFacts, StepResult, StepStatus
from octavo import metrics, telemetry

_BUCKETS_S = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
_PHASES = ("gap", "prepare", "forward", "sample")

_duration = Histogram(
    "octavo_worker_step_duration_seconds",
    "Parts of a step; gap is the time it lay ready while nothing ran",
    ["phase"],
    registry=metrics.REGISTRY,
    buckets=_BUCKETS_S,
)
_steps = Counter("octavo_worker_steps", "Steps answered", ["status"], registry=metrics.REGISTRY)
_tokens = Counter("octavo_worker_tokens", "Tokens computed", ["kind"], registry=metrics.REGISTRY)

_durations = {phase: _duration.labels(phase) for phase in _PHASES}  # preset, so that rates start at 0
_counts = {status: _steps.labels(status.name.lower()) for status in StepStatus}
_decode_tokens, _prefill_tokens = _tokens.labels("decode"), _tokens.labels("prefill")


def report(result: StepResult) -> None:
    """Count a step and, if somebody traces it, make its spans."""
    _counts[result.status].inc()
    if result.facts is None:
        return
    timing, facts = result.timing, result.facts
    _durations["gap"].observe(timing.gap_us / 1e6)
    _durations["prepare"].observe(timing.prepare_us / 1e6)
    _durations["forward"].observe(timing.forward_us / 1e6)
    _durations["sample"].observe(timing.sample_us / 1e6)
    _decode_tokens.inc(facts.num_decode_rows)
    _prefill_tokens.inc(facts.num_tokens - facts.num_decode_rows)
    if telemetry.is_enabled() and (facts.trace_context or facts.joined):
        _record_spans(result, facts)


def _record_spans(result: StepResult, facts: StepFacts) -> None:
    """The step in its own trace, for whoever asks about the batch; and in the trace of each request that joined it."""
    timing = result.timing
    sampling_ns = facts.ended_ns - timing.sample_us * 1000
    forward_ns = sampling_ns - timing.forward_us * 1000
    start_ns = forward_ns - timing.prepare_us * 1000
    attributes = {
        "octavo.step.id": result.step,
        "octavo.step.seq": result.seq,
        "octavo.step.rows": facts.num_rows,
        "octavo.step.decode_seqs": facts.num_decode_rows,
        "octavo.step.batch_tokens": facts.num_tokens,
        "octavo.step.gap_us": timing.gap_us,
    }
    step = telemetry.context_from_bytes(facts.trace_context)
    if step is not None:
        made = telemetry.record_span(
            "worker.step", parent=step, start_ns=start_ns, end_ns=facts.ended_ns, attributes=attributes
        )
        telemetry.record_span("forward", parent=made, start_ns=forward_ns, end_ns=sampling_ns)
        telemetry.record_span("sample", parent=made, start_ns=sampling_ns, end_ns=facts.ended_ns)
    links = [telemetry.link(step)] if step is not None else []
    for context in map(telemetry.context_from_bytes, facts.joined):
        if context is not None:
            telemetry.record_span(
                "worker.first_step",
                parent=context,
                start_ns=start_ns,
                end_ns=facts.ended_ns,
                attributes=attributes,
                links=links,
            )
