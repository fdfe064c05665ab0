"""Answers generation requests for gRPC and HTTP alike: checks, tokenizes, submits, and gives back text.

Knows neither protocol. A call ends when its iterator is closed: whatever is left of it is then cancelled.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence

from gateway import failures
from gateway.call_record import CallRecord
from gateway.call_spans import CallSpans
from gateway.config import Limits
from gateway.core import limits
from gateway.core.generation import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    ModelEntry,
    Prompt,
    ServingState,
    TextPrompt,
    TokenPrompt,
)
from gateway.request_metrics import RequestMetrics
from gateway.scheduler_session import CancelReason, SchedulerSession
from gateway.serving import Serving
from gateway.submitter import Job, Submitter
from gateway.tokenizer import Tokenizer
from octavo import errors, logs, telemetry
from octavo.telemetry import SpanContext

_log = logs.get(__name__)


class Generator:
    """What the handlers of both protocols call.

    Mistakes and failures are core/limits' exceptions and octavo.errors.Failed; `failures.STATUSES` maps them.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        session: SchedulerSession,
        serving: Serving,
        metrics: RequestMetrics,
        settings: Limits,
    ) -> None:
        self._tokenizer = tokenizer
        self._serving = serving
        self._submitter = Submitter(tokenizer=tokenizer, session=session, serving=serving, metrics=metrics)
        self._metrics = metrics
        self._max_open = settings.max_concurrent_requests
        self._limits = limits.RequestLimits(
            vocab_size=serving.profile.vocab_size,
            max_choices=settings.max_choices,
            max_stop_sequences=settings.max_stop_sequences,
        )
        self._num_open = 0
        self._live_ids: set[tuple[str, str]] = set()  # (tenant, client's request id)
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def generate(
        self, request: GenerationRequest, *, trace_parent: SpanContext | None = None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Started, then chunks, then Finished. Use inside contextlib.aclosing: leaving early cancels the request.

        Nothing is yielded before the scheduler admits the request, so a refusal is the first thing to happen.
        """
        record = self._new_record(request)
        spans = CallSpans(request, record, parent=trace_parent)
        with self._recorded(record, spans), self._counted(request):
            limits.check(request, self._limits)
            start_ns = telemetry.now_ns()
            prompt_token_ids = await self._prompt_token_ids(request.prompt)
            record.num_prompt_tokens = len(prompt_token_ids)
            spans.tokenized(start_ns)
            deadline_at_s = None if request.deadline_s is None else record.arrived_at_s + request.deadline_s
            job = Job(
                request=request,
                prompt_token_ids=prompt_token_ids,
                record=record,
                spans=spans,
                deadline_at_s=deadline_at_s,
            )
            run = self._submitter.start(job)
            try:
                async with contextlib.aclosing(run.events(deadline_at_s)) as events:
                    async for event in events:
                        yield event
            finally:
                run.cancel(self._cancel_reason(deadline_at_s))

    async def tokenize(self, prompt: TextPrompt | ChatPrompt, *, model: str = "") -> list[int]:
        """Token ids of a text or a chat. Unlike a request's, the text may be empty."""
        self.model(model)
        limits.check_prompt_text(prompt)
        return await self._tokenizer.encode(prompt)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        """Text of token ids, special tokens included."""
        self.model(model)
        limits.check_token_ids("token_ids", token_ids, vocab_size=self._serving.vocab_size)
        return self._tokenizer.decode(token_ids)

    def models(self) -> list[ModelEntry]:
        return [self._serving.entry("")]

    def model(self, name: str) -> ModelEntry:
        """The model of that name or alias; an empty name is the only model. Raises UnknownModel."""
        return self._serving.entry(name)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text; can be a part of a character."""
        return self._tokenizer.token_bytes(token_id)

    @property
    def serving_state(self) -> ServingState:
        return self._serving.state

    async def drain(self) -> None:
        """Refuse new requests from now on; return when the running ones are over."""
        self._serving.start_draining()
        await self._is_idle.wait()

    def _new_record(self, request: GenerationRequest) -> CallRecord:
        return CallRecord(
            request_id=request.client_request_id or request.correlation_id or f"req-{uuid.uuid4().hex}",
            tenant=request.tenant,
            model=self.model(request.model).name,
            num_answers=max(1, min(request.n, self._limits.max_choices)),
        )

    @contextlib.contextmanager
    def _counted(self, request: GenerationRequest) -> Iterator[None]:
        """The call holds a place, and its id, while it runs."""
        self._serving.check_accepting()
        if self._num_open >= self._max_open:
            raise failures.too_many(self._max_open)
        live_id = (request.tenant, request.client_request_id)
        if request.client_request_id:
            if live_id in self._live_ids:
                raise limits.DuplicateRequest(request.client_request_id)
            self._live_ids.add(live_id)
        self._num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            self._live_ids.discard(live_id)
            if self._num_open == 0:
                self._is_idle.set()

    @contextlib.contextmanager
    def _recorded(self, record: CallRecord, spans: CallSpans) -> Iterator[None]:
        """However the call ends: one log line, its metrics and its spans."""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            record.error = "CANCELLED"
            raise
        except Exception as exc:
            failure = errors.from_exception(exc, failures.STATUSES)
            record.error = failure.reason if failure is not None else "INTERNAL"
            raise
        finally:
            record.ended_at_s = record.ended_at_s or time.monotonic()
            self._count(record, spans)
            spans.end()
            _log.info("request_finished", **_log_fields(record))

    def _count(self, record: CallRecord, spans: CallSpans) -> None:
        if record.num_prompt_tokens == 0:
            return  # it was refused before it was a request
        otherwise = FinishReason.CANCELLED if record.error == "CANCELLED" else FinishReason.ERROR
        for answer in record.answers:
            self._metrics.answer_ended(answer.finish_reason or otherwise, num_tokens=answer.num_tokens)
        self._metrics.call_ended(
            record.timing.e2e_s, num_prompt_tokens=record.num_prompt_tokens, trace_id=spans.trace_id
        )

    async def _prompt_token_ids(self, prompt: Prompt) -> Sequence[int]:
        return prompt.token_ids if isinstance(prompt, TokenPrompt) else await self._tokenizer.encode(prompt)

    def _cancel_reason(self, deadline_at_s: float | None) -> CancelReason:
        if deadline_at_s is not None and time.monotonic() >= deadline_at_s:
            return CancelReason.DEADLINE
        return CancelReason.SHUTDOWN if self._serving.is_draining else CancelReason.CLIENT_GONE


def _log_fields(record: CallRecord) -> dict[str, object]:
    usage, timing = record.usage, record.timing
    reasons = [answer.finish_reason.value for answer in record.answers if answer.finish_reason is not None]
    return {
        "request_id": record.request_id,
        "tenant": record.tenant,
        "num_prompt_tokens": usage.num_prompt_tokens,
        "num_cached_tokens": usage.num_cached_tokens,
        "num_output_tokens": usage.num_completion_tokens,
        "queue_ms": round(timing.queue_s * 1e3, 1),
        "ttft_ms": round(timing.ttft_s * 1e3, 1) if record.first_token_at_s is not None else None,
        "e2e_ms": round(timing.e2e_s * 1e3, 1),
        "reason": record.error or ",".join(reasons),
    }
