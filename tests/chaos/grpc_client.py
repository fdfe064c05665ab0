"""Sends a request of the load over the gRPC API, and tells what came and how it ended. As strict as over HTTP."""

import asyncio
import time

import grpc

from octavo import client, errors
from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from tests.chaos.attempt import Attempt, Ending
from tests.chaos.requests import Request, Way
from tests.chaos.transcript import Piece, Score, Transcript, Usage

PATIENCE_S = 180.0  # of a client that set no deadline
_KEEPALIVE = (("grpc.keepalive_time_ms", 5_000), ("grpc.keepalive_timeout_ms", 5_000))  # as often as servers allow
# What gRPC itself says when a connection is lost, in a status without an ErrorInfo.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class GrpcClient:
    """All its calls share one connection, as those of one program do."""

    def __init__(self, target: str) -> None:
        self._channel = client.channel(target, options=_KEEPALIVE)
        self._stub = InferenceServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)

    async def attempt(self, request: Request, transcript: Transcript, *, deadline_s: float | None) -> Attempt:
        """Send it once and write down what comes. `deadline_s` is what is left of the time that the client gives."""
        started_s = time.monotonic()
        detail, retry_after_s = "", None
        try:
            async with asyncio.timeout(request.leave_after_s):
                ending = await self._exchange(request, transcript, deadline_s or PATIENCE_S)
        except TimeoutError:
            ending = Ending.LEFT
        except grpc.aio.AioRpcError as error:
            failure = errors.from_rpc_error(error)
            ending = _ending(failure, has_begun=transcript.has_begun, has_deadline=deadline_s is not None)
            detail, retry_after_s = f"{failure.code.name} {failure.reason}: {failure.message}", failure.retry_after_s
        return Attempt(
            started_s=started_s,
            ended_s=time.monotonic(),
            transcript=transcript,
            ending=ending,
            detail=detail,
            retry_after_s=retry_after_s,
        )

    async def _exchange(self, request: Request, transcript: Transcript, timeout_s: float) -> Ending:
        if request.way is Way.GRPC_WHOLE:
            whole = pb.GenerateOnceRequest(request=message(request))
            _read_whole(await self._stub.GenerateOnce(whole, timeout=timeout_s), transcript)
            return Ending.COMPLETE
        call = self._stub.Generate(message(request), timeout=timeout_s)
        try:
            return await _read_events(call, request, transcript)
        finally:
            call.cancel()  # changes nothing after its end


async def _read_events(
    call: "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]", request: Request, transcript: Transcript
) -> Ending:
    async for event in call:
        match event.WhichOneof("event"):
            case "started":
                if transcript.has_begun:
                    transcript.note("started came after something else")
                transcript.has_begun = True
            case "chunk":
                if not transcript.has_begun:
                    transcript.note("a chunk came before started")
                transcript.add(_piece(event.chunk), now_s=time.monotonic())
                limit = request.leave_after_events
                if limit is not None and len(transcript.arrivals_s) >= limit:
                    return Ending.LEFT
            case "finished":
                transcript.tell_usage(_usage(event.finished.usage))
                transcript.close()
            case other:
                transcript.note(f"no event: {other}")
    if not transcript.is_closed:
        transcript.note("the call ended with OK before finished")
    return Ending.COMPLETE


def message(request: Request) -> pb.GenerateRequest:
    """The protobuf message of a request."""
    sampling = pb.SamplingParams(temperature=request.temperature, top_p=request.top_p, n=request.n, seed=request.seed)
    stopping = pb.StopParams(max_tokens=request.max_tokens, stop_sequences=request.stop, ignore_eos=request.ignore_eos)
    output = pb.OutputOptions(token_ids=True, top_logprobs=request.top_logprobs)
    wanted = pb.GenerateRequest(sampling=sampling, stopping=stopping, output=output)
    match request.prompt:
        case str(text):
            wanted.text = text
        case (int(), *_):
            wanted.token_ids.ids.extend(token_id for token_id in request.prompt if isinstance(token_id, int))
        case other:
            raise AssertionError(f"{request.name} asks gRPC for {other!r}")
    return wanted


def _read_whole(answer: pb.GenerateOnceResponse, transcript: Transcript) -> None:
    for choice in answer.choices:
        transcript.add(_piece(choice), now_s=time.monotonic())
    transcript.tell_usage(_usage(answer.finished.usage))
    transcript.close()


def _piece(chunk: pb.Chunk | pb.Choice) -> Piece:
    """A chunk of a stream or a choice of a whole answer; they have the same fields."""
    cause = chunk.WhichOneof("stop_cause")
    has_ended = chunk.finish_reason != pb.FINISH_REASON_UNSPECIFIED
    return Piece(
        index=chunk.index,
        text=chunk.text,
        token_ids=tuple(chunk.token_ids),
        scores=tuple(_score(position) for position in chunk.logprobs),
        finish_reason=pb.FinishReason.Name(chunk.finish_reason) if has_ended else None,
        stop_cause=getattr(chunk, cause) if cause else None,
    )


def _score(position: pb.Logprobs) -> Score:
    return Score(
        token=str(position.sampled.token_id),
        logprob=position.sampled.logprob,
        top={str(token.token_id): token.logprob for token in position.top},
    )


def _usage(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _ending(failure: errors.Failure, *, has_begun: bool, has_deadline: bool) -> Ending:
    is_said_by_grpc = failure.reason == errors.PEER_REASON
    if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Ending.DEADLINE if has_deadline else Ending.SILENT
    if is_said_by_grpc and failure.code in _LOST:
        return Ending.BROKEN
    if failure.code in _RETRIED and failure.retry_after_s is not None and not has_begun:
        return Ending.REFUSED
    return Ending.FAILED
