"""Tells whoever is concerned what the cores decided: gateways, metrics and traces. Decides nothing."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from octavo import logs, telemetry
from octavo.errors import Failure
from octavo.telemetry import Span
from scheduler_service import failures, spans
from scheduler_service.core.flight import SentStep
from scheduler_service.core.outcome import Output
from scheduler_service.core.request import Request, Status
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.metrics import Metrics
from scheduler_service.tickets import Ending, StepFacts, Ticket

_log = logs.get(__name__)


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """A sent step, until its result is in."""

    sent: SentStep
    sent_ns: int
    num_prefill_tokens: int
    num_decode_seqs: int
    traced: list[Ticket]
    span: Span | None

    @property
    def trace_context(self) -> bytes:
        context = spans.context_of(self.span)
        return telemetry.context_to_bytes(context) if context is not None else b""

    @property
    def num_batch_tokens(self) -> int:
        return sum(self.sent.num_tokens)

    def facts(self, done_ns: int, budget: int) -> StepFacts:
        return StepFacts(
            seq=self.sent.seq,
            sent_ns=self.sent_ns,
            done_ns=done_ns,
            num_prefill_tokens=self.num_prefill_tokens,
            num_decode_seqs=self.num_decode_seqs,
            num_batch_tokens=self.num_batch_tokens,
            budget=budget,
            context=spans.context_of(self.span),
        )


class Reporter:
    """Owns the tickets of all open requests."""

    def __init__(self, metrics: Metrics) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.metrics = metrics
        self._num_traced = 0
        self._closing = asyncio.Event()  # set whenever a request ends
        self._is_let_go = False

    def let_go(self) -> None:
        """Nobody waits any more for the requests that are open."""
        self._is_let_go = True
        self._closing.set()

    async def all_closed(self) -> None:
        """Return when no request is open, or they were let go."""
        while self.tickets and not self._is_let_go:
            self._closing.clear()
            await self._closing.wait()

    def opened(self, ticket: Ticket) -> None:
        self.tickets[ticket.request_id] = ticket
        self._num_traced += ticket.trace is not None

    def sent(self, sent: SentStep) -> StepRecord:
        """A step is on its way; its span is made only if somebody's trace wants it."""
        traced: list[Ticket] = []
        if self._num_traced:
            tickets = (self.tickets.get(request.request_id) for request in sent.requests)
            traced = [ticket for ticket in tickets if ticket is not None and ticket.trace is not None]
        return StepRecord(
            sent=sent,
            sent_ns=time.monotonic_ns(),
            num_prefill_tokens=sum(num_tokens for num_tokens in sent.num_tokens if num_tokens > 1),
            num_decode_seqs=sent.num_tokens.count(1),
            traced=traced,
            span=spans.start_step(traced),
        )

    def answered(self, record: StepRecord, core: Scheduler) -> None:
        """A step came back: the traces of its requests get what it was made of."""
        if not record.traced:
            return
        facts = record.facts(time.monotonic_ns(), core.limits.max_num_batched_tokens)
        num_tokens = {row.request.request_id: row.num_tokens for row in record.sent.rows}
        for ticket in record.traced:
            assert ticket.trace is not None
            if ticket.first_token_ns is None or num_tokens[ticket.request_id] > 1:
                ticket.trace.chunks.append((facts, num_tokens[ticket.request_id]))
            else:
                ticket.trace.decodes.append(facts)
        if record.span is not None:
            spans.end_step(record.span, facts, running=core.running, num_waiting=core.num_waiting)

    def admitted(self, requests: Iterable[Request], labels: tuple[str, str]) -> None:
        for request in requests:
            ticket = self.tickets[request.request_id]
            if ticket.scheduled():
                assert ticket.admitted_ns is not None
                self.metrics.queue.labels(*labels).observe((ticket.admitted_ns - ticket.submitted_ns) / 1e9)
                ticket.gateway.admitted(ticket)

    def preempted(self, requests: Iterable[Request], reason: str) -> None:
        for request in requests:
            _log.info("request_preempted", request_id=request.request_id, reason=reason,
                      num_known_tokens=request.num_known_tokens)  # fmt: skip
            self.tickets[request.request_id].preempted(reason, request.num_known_tokens)

    def tokens(self, outputs: Iterable[Output], logprobs: Iterable[bytes], labels: tuple[str, str]) -> None:
        """New tokens; `logprobs` holds one entry for each sampled token of the rows that asked."""
        positions = iter(logprobs)
        now_ns = time.monotonic_ns()
        for output in outputs:
            its_own = [next(positions)] if output.request.wants_logprobs else []
            ticket = self.tickets.get(output.request.request_id)
            if ticket is None or not output.token_ids:
                continue
            if ticket.got_tokens(now_ns):
                self._first_token(ticket, labels)
            ticket.logprobs += its_own
            ticket.gateway.tokens(ticket, output.token_ids, its_own)

    def _first_token(self, ticket: Ticket, labels: tuple[str, str]) -> None:
        assert ticket.admitted_ns is not None
        assert ticket.first_token_ns is not None
        self.metrics.prefill.labels(*labels).observe((ticket.first_token_ns - ticket.admitted_ns) / 1e9)
        self.metrics.prompt_tokens.labels(*labels).inc(ticket.request.num_prompt_tokens)

    def finished(self, requests: Iterable[Request], labels: tuple[str, str] | None) -> None:
        """Requests that have ended; `labels` of the worker that served them, if one did."""
        for request in requests:
            ticket = self._close(request)
            ending = _ending(ticket)
            spans.record_request(ticket, ending)
            _log_end(ticket, ending)
            if labels is not None and ticket.first_token_ns is not None:
                lived_ns = time.monotonic_ns() - ticket.first_token_ns
                self.metrics.decode.labels(*labels).observe(lived_ns / 1e9)
            ticket.gateway.finished(ticket, ending)

    def rejected(self, request: Request, failure: Failure) -> None:
        """A request that was not taken."""
        self.metrics.rejected.labels(failure.reason).inc()
        ticket = self._close(request)
        spans.record_refusal(ticket.submission.trace_context, failure.reason, failure.message)
        ticket.gateway.rejected(ticket.request_num, failure)

    def _close(self, request: Request) -> Ticket:
        """The request is no longer open: its ticket, taken out."""
        ticket = self.tickets.pop(request.request_id)
        self._closing.set()
        ticket.stop_timers()
        self._num_traced -= ticket.trace is not None
        return ticket


def _log_end(ticket: Ticket, ending: Ending) -> None:
    request = ticket.request
    _log.debug(
        "request_finished",
        request_id=request.request_id,
        client_request_id=ticket.submission.client_request_id,
        reason=ending.reason,
        failure=ending.failure.reason if ending.failure is not None else None,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
        num_preemptions=request.num_preemptions,
    )


def _ending(ticket: Ticket) -> Ending:
    request = ticket.request
    match request.status:
        case Status.STOPPED:
            return Ending(reason="stop")
        case Status.LENGTH:
            return Ending(reason="length", detail=request.finish_detail)
        case Status.ABORTED:
            return Ending(reason="cancelled")
        case Status.ERROR:
            return Ending(reason="error", failure=_failure(ticket))
        case status:
            raise AssertionError(f"{request.request_id} is reported as finished, but it is {status}")


def _failure(ticket: Ticket) -> Failure:
    request = ticket.request
    return failures.ended(
        request.finish_detail,
        waited_s=(time.monotonic_ns() - ticket.submitted_ns) / 1e9,
        num_output_tokens=request.num_output_tokens,
        was_admitted=ticket.admitted_ns is not None,
        waits_for=request.waited_for or "turn",
    )
