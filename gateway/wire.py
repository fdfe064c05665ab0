"""Converts between the values of `core/generation` and the messages of octavo.inference.v1."""

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from gateway.core.generation import (
    ChatMessage,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    ModelEntry,
    PositionLogprobs,
    Prompt,
    Sampling,
    Started,
    Stopping,
    TextChunk,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
)
from gateway.core.limits import InvalidParameter, priority_of
from octavo.inference.v1 import inference_pb2

FINISH_REASONS = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: inference_pb2.FINISH_REASON_ERROR,
}


def request(
    message: inference_pb2.GenerateRequest, metadata: Mapping[str, str], *, deadline_s: float | None
) -> GenerationRequest:
    """What a client asks for, by message and by metadata; a field of the message wins. Raises InvalidParameter."""
    return GenerationRequest(
        prompt=prompt(message),
        model=message.model,
        sampling=_sampling(message.sampling),
        stopping=_stopping(message.stopping),
        num_logprobs=message.output.top_logprobs if message.output.HasField("top_logprobs") else None,
        n=message.sampling.n if message.sampling.HasField("n") else 1,
        cache_salt=message.cache.salt,
        cache_bypass=message.cache.bypass,
        priority=message.priority if message.HasField("priority") else priority_of(metadata.get("x-priority", "0")),
        client_request_id=message.request_id,
        correlation_id=metadata.get("x-request-id", ""),
        tenant=metadata.get("x-tenant-id", ""),
        deadline_s=deadline_s,
    )


def prompt(message: inference_pb2.GenerateRequest) -> Prompt:
    """The prompt of a request. Raises InvalidParameter when there is none."""
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(text=message.text)
        case "token_ids":
            return TokenPrompt(token_ids=tuple(message.token_ids.ids))
        case "chat":
            return _chat(message.chat)
        case _:
            raise InvalidParameter("prompt", "set one of text, token_ids, chat")


def tokenize_prompt(message: inference_pb2.TokenizeRequest) -> TextPrompt | ChatPrompt:
    """What to tokenize. Raises InvalidParameter when there is nothing."""
    match message.WhichOneof("prompt"):
        case "text":
            adds = message.add_special_tokens if message.HasField("add_special_tokens") else True
            return TextPrompt(text=message.text, add_special_tokens=adds)
        case "chat":
            return _chat(message.chat)
        case _:
            raise InvalidParameter("prompt", "set one of text, chat")


def response(event: GenerationEvent, *, with_token_ids: bool) -> inference_pb2.GenerateResponse:
    """One event of the stream."""
    match event:
        case Started():
            return inference_pb2.GenerateResponse(started=_started(event))
        case TextChunk():
            return inference_pb2.GenerateResponse(chunk=_chunk(event, with_token_ids=with_token_ids))
        case Finished():
            return inference_pb2.GenerateResponse(finished=_finished(event))


def whole_response(events: Iterable[GenerationEvent], *, with_token_ids: bool) -> inference_pb2.GenerateOnceResponse:
    """All events of a call in one message."""
    answer = inference_pb2.GenerateOnceResponse()
    choices: dict[int, list[TextChunk]] = {}
    for event in events:
        match event:
            case Started():
                answer.started.CopyFrom(_started(event))
            case TextChunk():
                choices.setdefault(event.index, []).append(event)
            case Finished():
                answer.finished.CopyFrom(_finished(event))
    answer.choices.extend(_choice(choices[index], with_token_ids=with_token_ids) for index in sorted(choices))
    return answer


def model(entry: ModelEntry) -> inference_pb2.Model:
    """A model as clients see it."""
    return inference_pb2.Model(
        name=entry.name,
        aliases=entry.aliases,
        max_model_len=entry.max_model_len,
        ready=entry.is_ready,
        create_time=_timestamp(entry.created_s),
    )


def _chat(message: inference_pb2.ChatPrompt) -> ChatPrompt:
    begins = message.add_generation_prompt if message.HasField("add_generation_prompt") else None
    return ChatPrompt(
        messages=tuple(
            ChatMessage(role=one.role, content=one.content, name=one.name or None) for one in message.messages
        ),
        add_generation_prompt=not message.continue_final_message if begins is None else begins,
        continue_final_message=message.continue_final_message,
        template_kwargs=_template_kwargs(message.template_kwargs),
    )


def _template_kwargs(message: Struct) -> Mapping[str, object]:
    """A Struct is JSON, but its numbers can be what JSON has no word for."""
    try:
        return json_format.MessageToDict(message)
    except (json_format.Error, ValueError) as refused:
        raise InvalidParameter("chat_template_kwargs", f"must be JSON: {refused}") from None


def _sampling(message: inference_pb2.SamplingParams) -> Sampling:
    """Absent fields become None."""
    given = {field.name: value for field, value in message.ListFields()}
    return Sampling(
        temperature=given.get("temperature"),
        top_p=given.get("top_p"),
        top_k=given.get("top_k"),
        min_p=given.get("min_p"),
        presence_penalty=given.get("presence_penalty"),
        frequency_penalty=given.get("frequency_penalty"),
        repetition_penalty=given.get("repetition_penalty"),
        seed=given.get("seed"),
        logit_bias=dict(message.logit_bias),
    )


def _stopping(message: inference_pb2.StopParams) -> Stopping:
    return Stopping(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop_sequences=tuple(message.stop_sequences),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_sequence=message.include_stop_sequence,
    )


def _started(event: Started) -> inference_pb2.Started:
    return inference_pb2.Started(
        request_id=event.request_id,
        model=event.model,
        prompt_tokens=event.num_prompt_tokens,
        cached_tokens=event.num_cached_tokens,
        create_time=_timestamp(event.created_s),
    )


def _chunk(event: TextChunk, *, with_token_ids: bool) -> inference_pb2.Chunk:
    return inference_pb2.Chunk(
        index=event.index,
        text=event.text,
        token_ids=event.token_ids if with_token_ids else (),
        logprobs=_logprobs(event.logprobs),
        finish_reason=FINISH_REASONS[event.finish_reason],
        stop_sequence=event.stop_sequence,
        stop_token_id=event.stop_token_id,
    )


def _choice(chunks: Sequence[TextChunk], *, with_token_ids: bool) -> inference_pb2.Choice:
    last = chunks[-1]
    return inference_pb2.Choice(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids] if with_token_ids else (),
        logprobs=[position for chunk in chunks for position in _logprobs(chunk.logprobs)],
        finish_reason=FINISH_REASONS[last.finish_reason],
        stop_sequence=last.stop_sequence,
        stop_token_id=last.stop_token_id,
    )


def _logprobs(positions: Sequence[PositionLogprobs]) -> list[inference_pb2.Logprobs]:
    return [
        inference_pb2.Logprobs(
            sampled=_token_logprob(position.sampled), top=[_token_logprob(token) for token in position.top]
        )
        for position in positions
    ]


def _token_logprob(token: TokenLogprob) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(token_id=token.token_id, token=token.token, logprob=token.logprob)


def _finished(event: Finished) -> inference_pb2.Finished:
    usage, timing = event.usage, event.timing
    return inference_pb2.Finished(
        usage=inference_pb2.Usage(
            prompt_tokens=usage.num_prompt_tokens,
            completion_tokens=usage.num_completion_tokens,
            cached_tokens=usage.num_cached_tokens,
        ),
        timing=inference_pb2.Timing(
            queue_duration=_duration(timing.queue_s),
            prefill_duration=_duration(timing.prefill_s),
            decode_duration=_duration(timing.decode_s),
            time_to_first_token=_duration(timing.ttft_s),
            preemption_count=timing.num_preemptions,
        ),
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration


def _timestamp(unix_s: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromNanoseconds(int(unix_s * 1e9))
    return timestamp
