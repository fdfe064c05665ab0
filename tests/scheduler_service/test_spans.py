"""The spans of a request tell where its time went; nothing is made for requests that are not sampled."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import telemetry
from scheduler_service.core.plan import Limits
from tests.fakes.otlp_receiver import OtlpReceiver
from tests.fakes.worker import FakeWorker
from tests.scheduler_service import stack as stacks

SAMPLED = telemetry.context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
UNSAMPLED = telemetry.context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
OF_A_REQUEST = ("admit", "queue", "prefill", "prefill.chunk", "decode")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


async def served(folder: Path, context: telemetry.SpanContext | None, *, num_blocks: int = 64) -> FakeWorker:
    """Two requests, of which the second is traced; the pool may be too small for both."""
    assert context is not None
    worker = FakeWorker(num_blocks=num_blocks)
    async with stacks.started(folder, limits=Limits(max_num_batched_tokens=32)) as stack:
        await stack.dial(worker)
        gateway = await stack.ready_gateway()
        await gateway.submit(1, list(range(40)), max_tokens=30)
        await gateway.submit(2, list(range(500, 560)), max_tokens=20, trace_context=telemetry.context_to_bytes(context))
        await gateway.end_of(1)
        await gateway.end_of(2)
    return worker


async def test_a_request_leaves_queue_prefill_with_chunks_and_decode(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with telemetry.configured("scheduler"):
        await served(tmp_path, SAMPLED)
    await asyncio.to_thread(receiver.wait_for, "admit", "queue", "prefill", "prefill.chunk", "decode", "step")
    chunks = [span for span in receiver.spans if span.name == "prefill.chunk"]
    prefill, decode = receiver.named("prefill"), receiver.named("decode")
    assert {span.trace_id for span in receiver.spans if span.name in OF_A_REQUEST} == {prefill.trace_id}
    assert {chunk.parent_span_id for chunk in chunks} == {prefill.span_id}
    assert sum(chunk.attributes["octavo.chunk.tokens"] for chunk in chunks) == 60
    assert all(chunk.attributes["octavo.step.budget"] == 32 for chunk in chunks)
    assert decode.attributes["octavo.decode.tokens"] == 20
    assert "first_token" in decode.events


async def test_a_step_links_its_sampled_requests_and_its_context_goes_to_the_worker(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    with telemetry.configured("scheduler"):
        worker = await served(tmp_path, SAMPLED)
    await asyncio.to_thread(receiver.wait_for, "step", "prefill.chunk")
    steps = {span.span_id: span for span in receiver.spans if span.name == "step"}
    assert all(span.links == [("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")] for span in steps.values())
    chunk = next(span for span in receiver.spans if span.name == "prefill.chunk")
    assert chunk.links[0][1] in steps
    contexts = [message.step.trace_context for message in worker.received if message.HasField("step")]
    assert {context[16:24].hex() for context in contexts if context} <= set(steps)


async def test_a_preempted_request_has_one_queue_span_more(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with telemetry.configured("scheduler"):
        await served(tmp_path, SAMPLED, num_blocks=8)
    await asyncio.to_thread(receiver.wait_for, "decode")
    waits = [span for span in receiver.spans if span.name == "queue"]
    assert any(span.attributes.get("octavo.queue.reason") == "preempted" for span in waits)
    assert {"preempted", "resumed"} <= set(receiver.named("decode").events)


async def test_an_unsampled_request_leaves_nothing(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with telemetry.configured("scheduler"):
        worker = await served(tmp_path, UNSAMPLED)
    assert not {span.name for span in receiver.spans} & {*OF_A_REQUEST, "step"}
    assert not any(message.step.trace_context for message in worker.received)
