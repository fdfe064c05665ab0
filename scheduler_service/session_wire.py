"""Submissions, events and the serving state between values and octavo.scheduler.v1. Decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from octavo.columns import pack, unpack
from octavo.common.v1 import common_pb2
from octavo.errors import Failure
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service.serving import ServingState
from scheduler_service.tickets import Ending, Submission, Ticket

_REASONS = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "cancelled": pb.FINISH_REASON_CANCELLED,
    "error": pb.FINISH_REASON_ERROR,
}
CANCEL_REASONS: Mapping[int, str] = {
    pb.CANCEL_REASON_CLIENT_GONE: "client_gone",
    pb.CANCEL_REASON_STOP_STRING: "stop_string",
    pb.CANCEL_REASON_DEADLINE: "deadline",
    pb.CANCEL_REASON_SHUTDOWN: "shutdown",
}


@dataclass(slots=True)
class Piled:
    """Events that wait for the stream to take them; a request's tokens of several steps are one entry."""

    admitted: list[pb.Admitted] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[bytes]] = field(default_factory=dict)
    finished: list[pb.Finished] = field(default_factory=list)
    rejected: list[pb.Rejected] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.tokens or self.finished or self.rejected)


def submission(message: pb.Submit) -> Submission:
    """A request; raises Malformed if its ids are not packed numbers."""
    stopping = message.stopping
    return Submission(
        request_num=message.request_num,
        client_request_id=message.client_request_id,
        tenant=message.tenant,
        prompt_token_ids=unpack("prompt_token_ids", message.prompt_token_ids),
        output_token_ids=unpack("output_token_ids", message.output_token_ids),
        sampling=message.sampling.SerializeToString(),
        stopping=stopping.SerializeToString(),
        max_tokens=stopping.max_tokens,
        min_tokens=stopping.min_tokens,
        ignore_eos=stopping.ignore_eos,
        eos_token_ids=frozenset(stopping.eos_token_ids),
        stop_token_ids=frozenset(stopping.stop_token_ids),
        wants_logprobs=message.sampling.HasField("num_logprobs"),
        priority=message.priority,
        remaining_s=message.remaining.ToNanoseconds() / 1e9 if message.HasField("remaining") else None,
        cache_salt=message.cache_salt,
        cache_bypass=message.cache_bypass,
        trace_context=message.trace_context,
        was_submitted=message.was_submitted,
    )


def events(piled: Piled, *, seq: int) -> pb.SessionResponse:
    """Everything that piled up, in one message."""
    counts = [len(ids) for ids in piled.tokens.values()]
    return pb.SessionResponse(
        seq=seq,
        events=pb.Events(
            admitted=piled.admitted,
            request_nums=pack(piled.tokens),
            num_tokens=b"" if all(count == 1 for count in counts) else pack(counts),
            token_ids=pack(token_id for ids in piled.tokens.values() for token_id in ids),
            logprobs=[
                common_pb2.PositionLogprobs.FromString(position)
                for request_num in piled.tokens
                for position in piled.logprobs.get(request_num, ())
            ],
            num_logprobs=pack(len(piled.logprobs.get(num, ())) for num in piled.tokens) if piled.logprobs else b"",
            finished=piled.finished,
            rejected=piled.rejected,
        ),
    )


def admitted(ticket: Ticket) -> pb.Admitted:
    """Scheduled for the first time."""
    return pb.Admitted(
        request_num=ticket.request_num,
        num_cached_tokens=ticket.request.num_cached_tokens,
        queue_duration=_duration((ticket.admitted_ns or ticket.submitted_ns) - ticket.submitted_ns),
    )


def finished(ticket: Ticket, ending: Ending, now_ns: int) -> pb.Finished:
    """The end of a request and its life in numbers."""
    request = ticket.request
    admitted_ns = ticket.admitted_ns or now_ns
    first_ns = ticket.first_token_ns or now_ns
    return pb.Finished(
        request_num=ticket.request_num,
        reason=_REASONS[ending.reason],
        stop_token_id=request.stop_token_id,
        failure=failure(ending.failure) if ending.failure is not None else None,
        detail=ending.detail,
        figures=pb.RequestFigures(
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            queue_duration=_duration(admitted_ns - ticket.submitted_ns),
            prefill_duration=_duration(first_ns - admitted_ns),
            decode_duration=_duration(now_ns - first_ns),
        ),
    )


def rejected(request_num: int, why: Failure) -> pb.Rejected:
    return pb.Rejected(request_num=request_num, failure=failure(why))


def failure(failure_: Failure) -> pb.Failure:
    message = pb.Failure(reason=failure_.reason, message=failure_.message, metadata=failure_.metadata)
    if failure_.quota_subject is not None:
        message.quota_subject = failure_.quota_subject
    if failure_.retry_after_s is not None:
        message.retry_after.CopyFrom(_duration(int(failure_.retry_after_s * 1e9)))
    return message


def state(serving: ServingState) -> pb.ServingState:
    """Whether requests can be served, and by what."""
    message = pb.ServingState(
        scheduler_incarnation=serving.scheduler_incarnation,
        ready=serving.is_ready,
        reason=serving.reason,
        draining=serving.is_draining,
        refusing=serving.is_refusing,
        num_blocks=serving.num_blocks,
        block_size=serving.block_size,
    )
    if serving.model is not None:
        message.model.name = serving.model.name
        message.model.max_model_len = serving.model.max_model_len
        message.model.vocab_size = serving.model.vocab_size
    return message


def _duration(nanoseconds: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(max(0, nanoseconds))
    return message
