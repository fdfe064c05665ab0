"""Between protobuf messages and the worker's own values. Decides nothing."""

from dataclasses import replace

import numpy as np

from gpu_worker.core.step import (
    Ids,
    NewRequest,
    PositionLogprobs,
    Sampling,
    Step,
    StepResult,
    StepStatus,
    TokenLogprob,
)
from gpu_worker.identity import Identity
from octavo.common.v1 import common_pb2
from octavo.worker.v1 import worker_pb2

_STATUSES = {
    StepStatus.OK: worker_pb2.STEP_STATUS_OK,
    StepStatus.FAULT: worker_pb2.STEP_STATUS_FAULT,
    StepStatus.VOID: worker_pb2.STEP_STATUS_VOID,
}
_MAX_INT32 = 2**31 - 1


def step(message: worker_pb2.Step) -> Step:
    """A step whose arrays cannot be read comes out as one with a defect and without rows."""
    try:
        return _step(message)
    except ValueError as defect:
        ends = worker_pb2.Step(session=message.session, step=message.step, seq=message.seq, acked_seq=message.acked_seq)
        return replace(_step(ends), defect=str(defect))


def _step(message: worker_pb2.Step) -> Step:
    return Step(
        session=message.session,
        step=message.step,
        seq=message.seq,
        acked_seq=message.acked_seq,
        released_handles=_ids(message.released_handles),
        new_requests=tuple(_new_request(request) for request in message.new_requests),
        handles=_ids(message.handles),
        num_scheduled_tokens=_ids(message.num_scheduled_tokens),
        new_block_rows=_ids(message.new_block_rows),
        num_new_blocks=_ids(message.num_new_blocks),
        new_block_ids=_ids(message.new_block_ids),
        slots_digest=message.slots_digest or None,
        trace_context=message.trace_context,
    )


def result(result: StepResult) -> worker_pb2.StepResult:
    timing = result.timing
    return worker_pb2.StepResult(
        session=result.session,
        step=result.step,
        seq=result.seq,
        status=_STATUSES[result.status],
        message=result.message,
        token_ids=np.array(result.token_ids, dtype="<u4").tobytes(),
        logprobs=[_position_logprobs(position) for position in result.logprobs],
        timing=worker_pb2.StepTiming(
            gap_us=min(timing.gap_us, _MAX_INT32),
            prepare_us=timing.prepare_us,
            forward_us=timing.forward_us,
            sample_us=timing.sample_us,
            idle_us=min(timing.idle_us, _MAX_INT32),
        ),
    )


def hello(
    identity: Identity, incarnation: int, *, session: int, last_executed_seq: int, kept: list[worker_pb2.StepResult]
) -> worker_pb2.ConnectRequest:
    return worker_pb2.ConnectRequest(
        hello=worker_pb2.Hello(
            worker_id=identity.worker_id,
            incarnation=incarnation,
            session=session,
            fingerprint=_fingerprint(identity),
            model=_model_info(identity),
            num_blocks=identity.num_blocks,
            max_num_batched_tokens=identity.max_num_batched_tokens,
            last_executed_seq=last_executed_seq,
            kept_results=kept,
        )
    )


def describe_response(identity: Identity, incarnation: int, startup_s: dict[str, float]) -> worker_pb2.DescribeResponse:
    return worker_pb2.DescribeResponse(
        worker_id=identity.worker_id,
        incarnation=incarnation,
        fingerprint=_fingerprint(identity),
        model=_model_info(identity),
        num_blocks=identity.num_blocks,
        device=identity.device,
        dtype=identity.dtype,
        attention_backend=identity.attention_backend,
        weight_bytes=identity.weight_bytes,
        kv_cache_bytes=identity.kv_cache_bytes,
        startup_s=startup_s,
    )


def _ids(packed: bytes) -> Ids:
    """Raises ValueError if `packed` is not whole uint32s."""
    return np.frombuffer(packed, dtype="<u4")


def _new_request(message: worker_pb2.NewRequest) -> NewRequest:
    return NewRequest(
        handle=message.handle,
        request_id=message.request_id,
        epoch=message.epoch,
        token_ids=_ids(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        block_ids=_ids(message.block_ids),
        num_computed_tokens=message.num_computed_tokens,
        sampling=_sampling(message.sampling, message.stopping),
        trace_context=message.trace_context,
    )


def _sampling(sampling: common_pb2.SamplingParams, stopping: common_pb2.StoppingParams) -> Sampling:
    eos_token_ids = () if stopping.ignore_eos else stopping.eos_token_ids
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=dict(sampling.logit_bias),
        num_logprobs=sampling.num_logprobs if sampling.HasField("num_logprobs") else None,
        min_tokens=stopping.min_tokens,
        ending_token_ids=(*eos_token_ids, *stopping.stop_token_ids),
    )


def _position_logprobs(position: PositionLogprobs) -> common_pb2.PositionLogprobs:
    return common_pb2.PositionLogprobs(
        sampled=_token_logprob(position.sampled), top=[_token_logprob(token) for token in position.top]
    )


def _token_logprob(token: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(token_id=token.token_id, logprob=token.logprob)


def _fingerprint(identity: Identity) -> common_pb2.Fingerprint:
    fingerprint = identity.fingerprint
    return common_pb2.Fingerprint(
        hash_scheme=fingerprint.hash_scheme,
        model_digest=fingerprint.model_digest,
        tokenizer_digest=fingerprint.tokenizer_digest,
        block_size=fingerprint.block_size,
        kv_dtype=fingerprint.kv_dtype,
        kv_layout=fingerprint.kv_layout,
    )


def _model_info(identity: Identity) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        name=identity.model_name, max_model_len=identity.max_model_len, vocab_size=identity.vocab_size
    )
