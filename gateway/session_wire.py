"""Converts between the values of `core/submission` and the messages of octavo.scheduler.v1's Session stream."""

import itertools
import time
from collections.abc import Iterator, Sequence

from google.protobuf.duration_pb2 import Duration

from gateway.core.generation import FinishReason
from gateway.core.submission import (
    Admitted,
    Ended,
    Figures,
    Rejected,
    SampledLogprobs,
    SchedulerFailure,
    SchedulerState,
    Submission,
    Tokens,
    Update,
)
from octavo.columns import pack, unpack
from octavo.common.v1 import common_pb2
from octavo.scheduler.v1 import scheduler_pb2

FINISH_REASONS = {
    scheduler_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    scheduler_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    scheduler_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    scheduler_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}


def submit(
    request_num: int, submission: Submission, output_token_ids: Sequence[int], *, was_submitted: bool = False
) -> scheduler_pb2.SessionRequest:
    """`output_token_ids` are those already received, when a request is submitted again."""
    message = scheduler_pb2.Submit(
        request_num=request_num,
        client_request_id=submission.client_request_id,
        tenant=submission.tenant,
        prompt_token_ids=pack(submission.prompt_token_ids),
        output_token_ids=pack(output_token_ids),
        sampling=_sampling(submission),
        stopping=_stopping(submission),
        priority=submission.priority,
        cache_salt=submission.cache_salt,
        cache_bypass=submission.cache_bypass,
        trace_context=submission.trace_context,
        was_submitted=was_submitted,
    )
    if submission.deadline_at_s is not None:
        message.remaining.FromNanoseconds(max(0, int((submission.deadline_at_s - time.monotonic()) * 1e9)))
    return scheduler_pb2.SessionRequest(submit=message)


def updates(events: scheduler_pb2.Events) -> Iterator[tuple[int, Update]]:
    """(request number, update) in the order in which a request must see them: admitted, tokens, ended."""
    for admitted in events.admitted:
        yield (
            admitted.request_num,
            Admitted(num_cached_tokens=admitted.num_cached_tokens, queue_s=_seconds(admitted.queue_duration)),
        )
    yield from _tokens(events)
    for finished in events.finished:
        yield finished.request_num, _ended(finished)
    for rejected in events.rejected:
        yield rejected.request_num, Rejected(failure=_failure(rejected.failure))


def state(message: scheduler_pb2.ServingState) -> SchedulerState:
    """What the scheduler says about itself."""
    has_model = message.HasField("model")
    return SchedulerState(
        is_ready=message.ready,
        is_draining=message.draining,
        is_refusing=message.refusing,
        reason=message.reason,
        max_model_len=message.model.max_model_len if has_model else None,
        vocab_size=message.model.vocab_size if has_model else None,
        num_blocks=message.num_blocks,
        block_size=message.block_size,
    )


def _tokens(events: scheduler_pb2.Events) -> Iterator[tuple[int, Tokens]]:
    """Cut the columns into one piece per request."""
    now_s = time.monotonic()
    token_ids = unpack("token_ids", events.token_ids)
    request_nums = unpack("request_nums", events.request_nums)
    num_requests = len(request_nums)
    counts = unpack("num_tokens", events.num_tokens) if events.num_tokens else itertools.repeat(1, num_requests)
    logprobs_counts = (
        unpack("num_logprobs", events.num_logprobs) if events.num_logprobs else itertools.repeat(0, num_requests)
    )
    start = logprobs_start = 0
    for request_num, count, num_logprobs in zip(request_nums, counts, logprobs_counts, strict=True):
        logprobs = events.logprobs[logprobs_start : logprobs_start + num_logprobs]
        yield (
            request_num,
            Tokens(
                token_ids=token_ids[start : start + count],
                logprobs=[_logprobs(position) for position in logprobs],
                received_at_s=now_s,
            ),
        )
        start += count
        logprobs_start += num_logprobs


def _logprobs(position: common_pb2.PositionLogprobs) -> SampledLogprobs:
    return SampledLogprobs(
        sampled=(position.sampled.token_id, position.sampled.logprob),
        top=tuple((token.token_id, token.logprob) for token in position.top),
    )


def _ended(finished: scheduler_pb2.Finished) -> Ended:
    figures = finished.figures
    return Ended(
        reason=FINISH_REASONS[finished.reason],
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
        failure=_failure(finished.failure) if finished.reason == scheduler_pb2.FINISH_REASON_ERROR else None,
        figures=Figures(
            num_cached_tokens=figures.num_cached_tokens,
            num_preemptions=figures.num_preemptions,
            queue_s=_seconds(figures.queue_duration),
            prefill_s=_seconds(figures.prefill_duration),
            decode_s=_seconds(figures.decode_duration),
        ),
    )


def _failure(failure: scheduler_pb2.Failure) -> SchedulerFailure:
    return SchedulerFailure(
        reason=failure.reason,
        message=failure.message,
        metadata=dict(failure.metadata),
        retry_after_s=_seconds(failure.retry_after) if failure.HasField("retry_after") else None,
        quota_subject=failure.quota_subject or None,
    )


def _sampling(submission: Submission) -> common_pb2.SamplingParams:
    sampling = submission.sampling
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=sampling.logit_bias,
        num_logprobs=sampling.num_logprobs,
    )


def _stopping(submission: Submission) -> common_pb2.StoppingParams:
    stopping = submission.stopping
    return common_pb2.StoppingParams(
        max_tokens=stopping.max_tokens,
        min_tokens=stopping.min_tokens,
        ignore_eos=stopping.ignore_eos,
        eos_token_ids=stopping.eos_token_ids,
        stop_token_ids=stopping.stop_token_ids,
    )


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
