"""One request, one trace: spans of all four processes, each with its parent in the same trace."""

from pathlib import Path

import httpx

from tests.e2e.stack import Stack
from tests.fakes.otlp_receiver import OtlpReceiver

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER_SPAN_ID = "00f067aa0ba902b7"
SERVICES = {"octavo-gateway", "octavo-scheduler", "octavo-kvcache", "octavo-worker"}


def test_a_request_is_one_trace_over_all_four_services_without_orphans(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        with Stack(tmp_path, "--max-num-batched-tokens", "32", environ=environ) as stack:
            httpx.post(
                f"{stack.url}/v1/chat/completions",
                headers={"traceparent": f"00-{TRACE_ID}-{CALLER_SPAN_ID}-01"},
                json={"messages": [{"role": "user", "content": "Count to ten. " * 8}], "max_tokens": 12, "model": ""},
                timeout=60,
            ).raise_for_status()
        # leaving the stack flushes every process
        trace = [span for span in receiver.spans if span.trace_id == TRACE_ID]
        steps = [span for span in receiver.spans if span.name == "step"]
    names = {(span.service, span.name) for span in trace}
    assert {span.service for span in trace} == SERVICES
    for expected in (
        ("octavo-gateway", "POST /v1/chat/completions"),
        ("octavo-gateway", "tokenize"),
        ("octavo-gateway", "submit"),
        ("octavo-scheduler", "queue"),
        ("octavo-kvcache", "kv.plan"),
        ("octavo-scheduler", "prefill"),
        ("octavo-scheduler", "prefill.chunk"),
        ("octavo-scheduler", "decode"),
        ("octavo-worker", "worker.first_step"),
        ("octavo-gateway", "respond"),
    ):
        assert expected in names, sorted(names)
    known = {span.span_id for span in trace} | {CALLER_SPAN_ID}
    assert [span.name for span in trace if span.parent_span_id not in known] == []
    # A step serves many requests: it has a trace of its own, linked to theirs.
    assert any(TRACE_ID in {trace_id for trace_id, _ in step.links} for step in steps)
    step_ids = {step.trace_id for step in steps}
    assert any(span.service == "octavo-worker" and span.trace_id in step_ids for span in receiver.spans)
