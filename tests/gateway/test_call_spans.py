"""The spans of a call, as a real collector gets them."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from gateway.core.generation import ChatMessage, ChatPrompt, GenerationRequest, Sampling, Stopping
from octavo import telemetry
from octavo.errors import Failed
from octavo.scheduler.v1 import scheduler_pb2
from tests.fakes.otlp_receiver import OtlpReceiver, SpanRecord
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, asked, events_of, running_stack

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = ChatPrompt(messages=(ChatMessage(role="user", content="hello"),))


async def spans_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: GenerationRequest, *, refusal: str = ""
) -> tuple[dict[str, SpanRecord], FakeScheduler]:
    """Name -> span of one call; it may fail."""
    scheduler = FakeScheduler()
    scheduler.refusal = scheduler_pb2.Failure(reason=refusal, message="no") if refusal else None
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with telemetry.configured("gateway"):
            async with running_stack(tmp_path, scheduler) as stack:
                await _call(stack, request)
        spans = await asyncio.to_thread(receiver.wait_for, "submit")
    return {span.name: span for span in spans}, scheduler


async def _call(stack: Stack, request: GenerationRequest) -> None:
    events = stack.generator.generate(request, trace_parent=telemetry.context_from_traceparent(PARENT))
    async with aclosing(events):
        try:
            async for _ in events:
                pass
        except Failed:
            return


async def test_a_chat_is_one_tree_under_the_callers_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    request = GenerationRequest(prompt=CHAT, sampling=Sampling(temperature=0.5), stopping=Stopping(max_tokens=5))
    spans, scheduler = await spans_of(tmp_path, monkeypatch, request)
    assert set(spans) == {"chat tiny", "tokenize", "submit", "respond"}
    chat = spans["chat tiny"]
    assert (chat.trace_id, chat.parent_span_id) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert {spans[name].parent_span_id for name in ("tokenize", "submit", "respond")} == {chat.span_id}
    sent = telemetry.context_from_bytes(scheduler.submits[0].trace_context)
    assert sent is not None
    assert f"{sent.span_id:016x}" == spans["submit"].span_id


async def test_the_spans_say_what_was_asked_and_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    request = GenerationRequest(
        prompt=CHAT, sampling=Sampling(temperature=0.5, seed=2**64 - 1), stopping=Stopping(max_tokens=5)
    )
    spans, _ = await spans_of(tmp_path, monkeypatch, request)
    said = spans["chat tiny"].attributes
    assert said["gen_ai.operation.name"] == "chat"
    assert (said["gen_ai.request.temperature"], said["gen_ai.request.max_tokens"]) == (0.5, 5)
    assert said["gen_ai.request.seed"] == -1  # the same 64 bits
    assert (said["gen_ai.usage.output_tokens"], said["gen_ai.usage.cache_read.input_tokens"]) == (5, 3)
    assert "gen_ai.usage.output_tokens" not in spans["submit"].attributes
    assert spans["submit"].attributes["gen_ai.latency.time_to_first_token"] > 0
    assert spans["submit"].attributes["octavo.preemptions"] == 2
    assert "hello" not in repr(spans)


async def test_a_refused_call_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spans, _ = await spans_of(tmp_path, monkeypatch, asked(), refusal="QUEUE_FULL")
    failed = spans["text_completion tiny"]
    assert (failed.status, failed.attributes["error.type"]) == ("ERROR", "QUEUE_FULL")
    assert "respond" not in spans


async def test_without_tracing_the_callers_context_still_reaches_the_scheduler(stack: Stack):
    await _call(stack, asked(max_tokens=1))
    assert stack.scheduler.submits[0].trace_context[:16].hex() == "0af7651916cd43dd8448eb211c80319c"
    await events_of(stack, asked(max_tokens=1))
    assert stack.scheduler.submits[1].trace_context == b""
