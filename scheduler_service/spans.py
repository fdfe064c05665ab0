"""The spans of a request and of a step, made when they are over; nothing is made for requests that are not sampled.

Times are kept on the monotonic clock and moved to the wall clock here.
"""

import time
from collections.abc import Sequence
from typing import Final

from octavo import telemetry
from octavo.telemetry import Event, Span, SpanContext, record_span
from scheduler_service.core.request import Request
from scheduler_service.tickets import Ending, StepFacts, Ticket, Trace, Wait

MAX_LINKS: Final = 64
NUM_SLOW_STEPS: Final = 3  # linked from `decode`


def trace_of(context: bytes) -> Trace | None:
    """What to collect for a request whose caller handed on this context; None when nobody will look."""
    if not context or not telemetry.is_enabled():
        return None
    parent = telemetry.context_from_bytes(context)
    return Trace(parent) if parent is not None and parent.trace_flags.sampled else None


def record_refusal(context: bytes, reason: str, message: str) -> None:
    """A request that was never taken leaves an `admit` span that says why."""
    trace = trace_of(context)
    if trace is not None:
        now_ns = time.time_ns()
        attributes = {"octavo.admission.result": reason.lower()}
        record_span("admit", parent=trace.parent, start_ns=now_ns, end_ns=now_ns, attributes=attributes, error=message)


def record_request(ticket: Ticket, ending: Ending) -> None:
    """Every span of a request that has ended."""
    trace = ticket.trace
    if trace is None:
        return
    now_ns = time.monotonic_ns()
    to_wall_ns = time.time_ns() - now_ns
    _record_admit(ticket, trace, to_wall_ns)
    for wait in trace.waits:
        _record_wait(wait, trace, to_wall_ns, until_ns=wait.end_ns or now_ns)
    if ticket.admitted_ns is not None:
        _record_prefill(ticket, trace, to_wall_ns, until_ns=ticket.first_token_ns or now_ns)
    if ticket.first_token_ns is not None:
        _record_decode(ticket, trace, to_wall_ns, ending)


def _record_admit(ticket: Ticket, trace: Trace, to_wall_ns: int) -> None:
    start_ns = ticket.submitted_ns
    end_ns = trace.waits[0].start_ns if trace.waits else start_ns
    record_span(
        "admit",
        parent=trace.parent,
        start_ns=start_ns + to_wall_ns,
        end_ns=end_ns + to_wall_ns,
        attributes={
            "octavo.admission.result": "accepted",
            "octavo.request.id": ticket.request_id,
            "octavo.worker.id": ticket.worker_id or "",
        },
    )


def _record_wait(wait: Wait, trace: Trace, to_wall_ns: int, *, until_ns: int) -> None:
    attributes: dict[str, int | str] = {
        "octavo.queue.depth_at_entry": wait.depth,
        "octavo.queue.tokens_ahead": wait.tokens_ahead,
    }
    if wait.reason:
        attributes["octavo.queue.reason"] = wait.reason
    if wait.waited_for:
        attributes["octavo.queue.waited_for"] = wait.waited_for
    record_span(
        "queue",
        parent=trace.parent,
        start_ns=wait.start_ns + to_wall_ns,
        end_ns=until_ns + to_wall_ns,
        attributes=attributes,
    )


def _record_prefill(ticket: Ticket, trace: Trace, to_wall_ns: int, *, until_ns: int) -> None:
    request = ticket.request
    assert ticket.admitted_ns is not None
    context = record_span(
        "prefill",
        parent=trace.parent,
        start_ns=ticket.admitted_ns + to_wall_ns,
        end_ns=until_ns + to_wall_ns,
        attributes={
            "octavo.prefill.tokens": request.num_prompt_tokens,
            "octavo.prefill.cached_tokens": request.num_cached_tokens,
            "octavo.prefill.computed_tokens": sum(tokens for _, tokens in trace.chunks),
            "octavo.prefill.chunks": len(trace.chunks),
        },
    )
    for index, (step, num_tokens) in enumerate(trace.chunks):
        record_span(
            "prefill.chunk",
            parent=context,
            start_ns=step.sent_ns + to_wall_ns,
            end_ns=step.done_ns + to_wall_ns,
            attributes={
                "octavo.chunk.index": index,
                "octavo.chunk.count": len(trace.chunks),
                "octavo.chunk.tokens": num_tokens,
                **step_attributes(step),
            },
            links=[telemetry.link(step.context)] if step.context is not None else [],
        )


def _record_decode(ticket: Ticket, trace: Trace, to_wall_ns: int, ending: Ending) -> None:
    assert ticket.first_token_ns is not None
    assert ticket.last_token_ns is not None
    slowest = sorted(trace.decodes, key=lambda step: step.done_ns - step.sent_ns, reverse=True)[:NUM_SLOW_STEPS]
    events = [Event("first_token", ticket.first_token_ns), *trace.events]
    record_span(
        "decode",
        parent=trace.parent,
        start_ns=ticket.first_token_ns + to_wall_ns,
        end_ns=ticket.last_token_ns + to_wall_ns,
        attributes=_decode_attributes(ticket, trace, ending),
        events=[Event(event.name, event.at_ns + to_wall_ns, event.attributes) for event in events],
        links=[telemetry.link(step.context) for step in slowest if step.context is not None],
        error=ending.failure.message if ending.failure is not None else None,
    )


def _decode_attributes(ticket: Ticket, trace: Trace, ending: Ending) -> dict[str, int | float | str]:
    gaps = sorted(ticket.token_gaps_ns)
    sizes = [step.num_decode_seqs for step in trace.decodes]
    attributes: dict[str, int | float | str] = {
        "octavo.decode.tokens": ticket.request.num_output_tokens,
        "octavo.decode.steps": len(trace.decodes),
        "octavo.decode.steps_with_prefill": sum(step.num_prefill_tokens > 0 for step in trace.decodes),
        "octavo.finish_reason": ending.reason,
        "octavo.preemptions": ticket.request.num_preemptions,
    }
    if gaps:
        attributes["octavo.decode.mean_itl_ms"] = sum(gaps) / len(gaps) / 1e6
        attributes["octavo.decode.p99_itl_ms"] = gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)] / 1e6
        attributes["octavo.decode.max_itl_ms"] = gaps[-1] / 1e6
    if sizes:
        attributes["octavo.batch.mean_size"] = sum(sizes) / len(sizes)
        attributes["octavo.batch.max_size"] = max(sizes)
    return attributes


def step_attributes(step: StepFacts) -> dict[str, int | float]:
    """What a step was made of, as it is copied onto its chunks."""
    return {
        "octavo.step.id": step.seq,
        "octavo.step.duration_ms": (step.done_ns - step.sent_ns) / 1e6,
        "octavo.step.prefill_tokens": step.num_prefill_tokens,
        "octavo.step.decode_seqs": step.num_decode_seqs,
        "octavo.step.batch_tokens": step.num_batch_tokens,
        "octavo.step.budget": step.budget,
    }


def start_step(traced: Sequence[Ticket]) -> Span | None:
    """The root span of a step, linked to its sampled requests; None when it has none."""
    if not traced:
        return None
    links = [telemetry.link(ticket.trace.parent) for ticket in traced[:MAX_LINKS] if ticket.trace is not None]
    span = telemetry.start_span("step", links=links)
    span.set_attribute("octavo.links.dropped", max(0, len(traced) - MAX_LINKS))
    return span


def context_of(span: Span | None) -> SpanContext | None:
    return span.get_span_context() if span is not None else None


def end_step(span: Span, facts: StepFacts, *, running: Sequence[Request], num_waiting: int) -> None:
    """The step was answered."""
    span.set_attributes(step_attributes(facts))
    span.set_attributes({"octavo.step.running": len(running), "octavo.step.waiting": num_waiting})
    span.end()
