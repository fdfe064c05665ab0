"""One generate call after its prompt is tokenized: submits its answers, and turns what comes back into events."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence

from gateway import failures
from gateway.call_record import CallRecord
from gateway.core.answer import Answer
from gateway.core.generation import (
    Finished,
    FinishReason,
    GenerationEvent,
    PositionLogprobs,
    Started,
    TextChunk,
    TokenLogprob,
)
from gateway.core.submission import Admitted, Ended, Rejected, SampledLogprobs, Submission, Tokens, Update
from gateway.inbox import Inbox
from gateway.request_metrics import RequestMetrics
from gateway.scheduler_session import CancelReason, SchedulerSession

FIGURES_WAIT_S = 1.0  # after a stop string, for the scheduler's figures of the answer


class GenerationRun:
    """Its answers are independent requests for the scheduler and share one inbox."""

    def __init__(
        self,
        record: CallRecord,
        answers: Sequence[Answer],
        *,
        session: SchedulerSession,
        metrics: RequestMetrics,
        token_bytes: Callable[[int], bytes],
        trace_id: str | None,
    ) -> None:
        self._record = record
        self._answers = answers
        self._session = session
        self._metrics = metrics
        self._token_bytes = token_bytes
        self._trace_id = trace_id
        self._inbox = Inbox()
        self._request_nums: list[int] = []
        self._is_started = False
        self._is_admission_heard = False

    def submit(self, submission: Submission) -> None:
        """Hand in the next answer."""
        index = len(self._request_nums)
        self._request_nums.append(self._session.submit(submission, self._inbox, index=index))

    def cancel(self, reason: CancelReason) -> None:
        """Nobody wants the rest. Harmless for answers that have ended."""
        for request_num in self._request_nums:
            self._session.cancel(request_num, reason)

    async def events(self, deadline_at_s: float | None) -> AsyncGenerator[GenerationEvent, None]:
        """Started, chunks, Finished. Raises Failed when the scheduler refuses or fails an answer, and when the
        deadline passes."""
        while not self._is_over() and await self._hear(deadline_at_s):
            for event in self._ready_events():
                before_s = time.monotonic()
                yield event
                self._record.blocked_s += time.monotonic() - before_s
        self._record.ended_at_s = time.monotonic()
        yield Finished(usage=self._record.usage, timing=self._record.timing)

    def _is_over(self) -> bool:
        return all(answer.ended is not None for answer in self._record.answers)

    async def _hear(self, deadline_at_s: float | None) -> bool:
        """Wait for updates and apply them; false when only figures were awaited, in vain."""
        is_answered = all(answer.finish_reason is not None for answer in self._answers)
        left_s = None if deadline_at_s is None else max(0.0, deadline_at_s - time.monotonic())
        deliveries = await self._inbox.take(timeout_s=FIGURES_WAIT_S if is_answered else left_s)
        if not deliveries and not is_answered:
            raise failures.deadline_exceeded(time.monotonic() - self._record.arrived_at_s)
        for delivery in deliveries:
            self._apply(delivery.index, delivery.update)
        return bool(deliveries)

    def _ready_events(self) -> list[GenerationEvent]:
        chunks = [chunk for answer in self._answers if (chunk := answer.take_chunk()) is not None]
        for chunk in chunks:
            self._note(chunk)
        if self._is_started:
            return list(chunks)
        self._is_started = True  # the first update of any answer is its admission
        started = Started(
            request_id=self._record.request_id,
            model=self._record.model,
            num_prompt_tokens=self._record.num_prompt_tokens,
            num_cached_tokens=self._record.num_cached_tokens,
            created_s=self._record.created_s,
        )
        return [started, *chunks]

    def _apply(self, index: int, update: Update) -> None:
        match update:
            case Admitted():
                self._hear_admission(update)
            case Tokens():
                self._hear_tokens(index, update)
            case Ended():
                self._hear_end(index, update)
            case Rejected():
                raise failures.from_scheduler(update.failure)

    def _hear_admission(self, admitted: Admitted) -> None:
        """The first of all answers counts: those after it hit what it has cached."""
        if not self._is_admission_heard:
            self._is_admission_heard = True
            self._record.num_cached_tokens = admitted.num_cached_tokens
            self._record.queue_s = admitted.queue_s

    def _hear_end(self, index: int, ended: Ended) -> None:
        self._record.answers[index].ended = ended
        if ended.failure is not None:
            raise failures.from_scheduler(ended.failure)
        if not self._is_admission_heard and ended.figures is not None:  # it was lost with a stream
            self._record.num_cached_tokens = ended.figures.num_cached_tokens
        self._answers[index].finish(ended.reason, stop_token_id=ended.stop_token_id)

    def _hear_tokens(self, index: int, tokens: Tokens) -> None:
        answer, record = self._answers[index], self._record.answers[index]
        num_before = answer.num_tokens
        answer.push(tokens.token_ids, [self._logprobs(position) for position in tokens.logprobs])
        record.num_tokens = answer.num_tokens
        num_new = answer.num_tokens - num_before
        if record.last_token_at_s is not None:
            self._metrics.next_tokens(tokens.received_at_s - record.last_token_at_s, num_new, trace_id=self._trace_id)
        elif self._record.first_token_at_s is None:
            self._record.first_token_at_s = tokens.received_at_s
            self._metrics.first_token(tokens.received_at_s - self._record.arrived_at_s, trace_id=self._trace_id)
        record.last_token_at_s = tokens.received_at_s
        if answer.finish_reason is FinishReason.STOP:
            self._session.stop(self._request_nums[index])

    def _note(self, chunk: TextChunk) -> None:
        record = self._record.answers[chunk.index]
        record.num_chunks += 1
        record.finish_reason = chunk.finish_reason
        if self._record.first_byte_ns is None:
            self._record.first_byte_ns = time.time_ns()

    def _logprobs(self, position: SampledLogprobs) -> PositionLogprobs:
        return PositionLogprobs(
            sampled=self._named(position.sampled), top=tuple(self._named(token) for token in position.top)
        )

    def _named(self, token: tuple[int, float]) -> TokenLogprob:
        token_id, logprob = token
        return TokenLogprob(token_id=token_id, token=self._token_bytes(token_id), logprob=logprob)
