"""The spans of one generate call: `chat <model>` with `tokenize`, `submit` and `respond` inside.

Knows the GenAI semantic conventions. The context of `submit` goes to the scheduler before the span ends, so that span
is opened early; everything else is recorded when it is over. Nothing of a prompt or an answer is in a span.
"""

from opentelemetry.trace import Status, StatusCode

from gateway.call_record import AnswerRecord, CallRecord
from gateway.core.generation import ChatPrompt, GenerationRequest
from octavo import telemetry
from octavo.telemetry import Span, SpanContext

Attribute = str | int | float | tuple[str, ...]


class CallSpans:
    """Costs next to nothing when tracing is off or the trace is not sampled."""

    def __init__(self, request: GenerationRequest, record: CallRecord, *, parent: SpanContext | None) -> None:
        self._request = request
        self._record = record
        operation = "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
        attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "octavo"}
        self._span = telemetry.start_span(
            f"{operation} {record.model}", parent=parent, attributes=attributes, start_ns=record.arrived_ns
        )
        self._submits: list[Span] = []

    @property
    def trace_id(self) -> str | None:
        """For exemplars; None when the trace is not kept."""
        return f"{self._context.trace_id:032x}" if self._span.is_recording() else None

    def tokenized(self, start_ns: int) -> None:
        if self._span.is_recording():
            telemetry.record_span(
                "tokenize",
                parent=self._context,
                start_ns=start_ns,
                end_ns=telemetry.now_ns(),
                attributes={"octavo.prompt.tokens": self._record.num_prompt_tokens},
            )

    def submitted(self) -> bytes:
        """One more answer goes to the scheduler; the context that its spans hang from."""
        span = telemetry.start_span("submit", parent=self._context)
        self._submits.append(span)
        return telemetry.context_to_bytes(span.get_span_context())

    def end(self) -> None:
        """The call is over, one way or the other."""
        if not self._span.is_recording():
            return
        for index, span in enumerate(self._submits):
            span.set_attributes(self._submit_attributes(index))
            span.end()
        self._record_respond()
        self._span.set_attributes(_known(self._request_attributes() | self._response_attributes()))
        if self._record.error:
            self._span.set_attribute("error.type", self._record.error)
            if self._record.error != "CANCELLED":
                self._span.set_status(Status(StatusCode.ERROR, self._record.error))
        self._span.end()

    @property
    def _context(self) -> SpanContext:
        return self._span.get_span_context()

    def _record_respond(self) -> None:
        record = self._record
        if record.first_byte_ns is not None:
            telemetry.record_span(
                "respond",
                parent=self._context,
                start_ns=record.first_byte_ns,
                end_ns=telemetry.now_ns(),
                attributes={
                    "octavo.respond.chunks": sum(answer.num_chunks for answer in record.answers),
                    "octavo.respond.blocked_ms": round(record.blocked_s * 1e3, 3),
                },
            )

    def _request_attributes(self) -> dict[str, Attribute | None]:
        sampling, stopping = self._request.sampling, self._request.stopping
        return {
            "gen_ai.request.model": self._request.model or self._record.model,
            "gen_ai.request.max_tokens": stopping.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.seed": None if sampling.seed is None else _signed(sampling.seed),
            "gen_ai.request.stop_sequences": stopping.stop_sequences or None,
            "gen_ai.request.choice.count": self._request.n if self._request.n > 1 else None,
            "octavo.tenant": self._request.tenant or None,
            "octavo.priority": self._request.priority or None,
        }

    def _response_attributes(self) -> dict[str, Attribute | None]:
        record = self._record
        usage, timing = record.usage, record.timing
        reasons = tuple(answer.finish_reason.value for answer in record.answers if answer.finish_reason)
        return {
            "gen_ai.response.id": record.request_id,
            "gen_ai.response.model": record.model,
            "gen_ai.response.finish_reasons": reasons or None,
            "gen_ai.response.time_to_first_chunk": timing.ttft_s if record.first_token_at_s else None,
            "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
            "gen_ai.usage.output_tokens": usage.num_completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        }

    def _submit_attributes(self, index: int) -> dict[str, Attribute]:
        """`gen_ai.latency.*` as vLLM and SGLang report them, in seconds."""
        timing = self._record.timing
        attributes: dict[str, Attribute] = {
            "octavo.request.id": self._record.request_id,
            "octavo.answer.index": index,
            "gen_ai.latency.e2e": timing.e2e_s,
        }
        if self._record.first_token_at_s is not None:
            attributes["gen_ai.latency.time_to_first_token"] = timing.ttft_s
        return attributes | _figures(self._record.answers[index])


def _figures(answer: AnswerRecord) -> dict[str, Attribute]:
    figures = answer.ended.figures if answer.ended else None
    if figures is None:
        return {}
    return {
        "gen_ai.latency.time_in_queue": figures.queue_s,
        "gen_ai.latency.time_in_model_prefill": figures.prefill_s,
        "gen_ai.latency.time_in_model_decode": figures.decode_s,
        "gen_ai.latency.time_in_model_inference": figures.prefill_s + figures.decode_s,
        "octavo.preemptions": figures.num_preemptions,
    }


def _known(attributes: dict[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}


def _signed(seed: int) -> int:
    """The same 64 bits as the integer that a span can hold."""
    return (seed + 2**63) % 2**64 - 2**63
