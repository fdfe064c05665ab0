"""Hellos, steps and results between values and octavo.worker.v1. Decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.columns import pack, unpack
from octavo.common.v1 import common_pb2
from octavo.worker.v1 import worker_pb2 as pb
from scheduler_service.core.plan import NewRequest, Step, StepResult, StepStatus
from scheduler_service.tickets import Ticket
from scheduler_service.worker_hello import Fingerprint, Hello

_STATUSES = {
    pb.STEP_STATUS_OK: StepStatus.OK,
    pb.STEP_STATUS_FAULT: StepStatus.FAULT,
    pb.STEP_STATUS_VOID: StepStatus.VOID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A step's result, and what the shell hands on or measures of it."""

    core: StepResult
    logprobs: list[bytes]  # serialized PositionLogprobs of the sampling rows that asked, in row order
    busy_us: int  # prepare, forward and sample
    gap_us: int


def hello(message: pb.Hello) -> Hello:
    """A worker introduces itself."""
    fingerprint = message.fingerprint
    return Hello(
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        session=message.session,
        fingerprint=Fingerprint(
            hash_scheme=fingerprint.hash_scheme,
            model_digest=fingerprint.model_digest,
            tokenizer_digest=fingerprint.tokenizer_digest,
            block_size=fingerprint.block_size,
            kv_dtype=fingerprint.kv_dtype,
            kv_layout=fingerprint.kv_layout,
        ),
        model_name=message.model.name,
        max_model_len=message.model.max_model_len,
        vocab_size=message.model.vocab_size,
        num_blocks=message.num_blocks,
        max_num_batched_tokens=message.max_num_batched_tokens,
        last_executed_seq=message.last_executed_seq,
    )


def result(message: pb.StepResult) -> Result:
    """How a step ended."""
    timing = message.timing
    return Result(
        core=StepResult(
            seq=message.seq,
            status=_STATUSES[message.status],
            message=message.message,
            token_ids=unpack("token_ids", message.token_ids),
        ),
        logprobs=[position.SerializeToString() for position in message.logprobs],
        busy_us=timing.prepare_us + timing.forward_us + timing.sample_us,
        gap_us=timing.gap_us,
    )


def step(step_: Step, *, session: int, tickets: Mapping[str, Ticket], trace_context: bytes) -> pb.Step:
    """A step as it is sent; `tickets` know how new requests sample."""
    return pb.Step(
        session=session,
        step=step_.step,
        seq=step_.seq,
        acked_seq=step_.acked_seq,
        released_handles=pack(step_.released_handles),
        new_requests=[_new_request(new, tickets[new.request_id]) for new in step_.new_requests],
        handles=pack(step_.handles),
        num_scheduled_tokens=pack(step_.num_scheduled_tokens),
        new_block_rows=pack(step_.new_block_rows),
        num_new_blocks=pack(step_.num_new_blocks),
        new_block_ids=pack(step_.new_block_ids),
        trace_context=trace_context,
        slots_digest=step_.slots_digest,
    )


def _new_request(new: NewRequest, ticket: Ticket) -> pb.NewRequest:
    return pb.NewRequest(
        handle=new.handle,
        request_id=new.request_id,
        epoch=new.epoch,
        token_ids=pack(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        block_ids=pack(new.block_ids),
        num_computed_tokens=new.num_computed_tokens,
        sampling=common_pb2.SamplingParams.FromString(ticket.submission.sampling),
        stopping=common_pb2.StoppingParams.FromString(ticket.submission.stopping),
        trace_context=ticket.submission.trace_context,
    )
