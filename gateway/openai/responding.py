"""Answers a generation call, whole or as a stream; the same for chat and text completions."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.core.generation import Finished, GenerationEvent, Started, TextChunk
from gateway.openai import answers, exchange
from gateway.openai.answers import Answer, Figures
from gateway.openai.call import Call, fingerprint
from gateway.openai.frames import Extras, Frames, to_json
from gateway.openai.generating import while_connected
from gateway.openai.json_value import Json
from gateway.openai.service import Service
from gateway.openai.streaming import EventStream, EventWriter


async def respond(service: Service, request: Request, *, call: Call, is_stream: bool) -> Response:
    """The response to a generation call."""
    if is_stream:
        return _streamed(service, request, call=call)
    return await _whole(service, request, call=call)


async def _whole(service: Service, request: Request, *, call: Call) -> Response:
    """One JSON object after the last token. The client leaving cancels the generations."""
    answer = Answer(num_prompts=len(call.requests), n=call.n)
    parent = exchange.current(request.scope).trace_parent
    await while_connected(service.runner.run(call.requests, answer.add, trace_parent=parent), request.receive)
    headers = {**call.headers, "server-timing": answers.server_timing(answer.figures.slowest)}
    return JSONResponse(answer_json(call, answer), headers=headers)


def _streamed(service: Service, request: Request, *, call: Call) -> Response:
    """Server-sent events. Nothing is sent before the first generation is admitted, unless that takes long."""
    parent = exchange.current(request.scope).trace_parent

    async def produce(writer: EventWriter) -> str:
        sink = StreamSink(call, writer)
        await service.runner.run(call.requests, sink.add, trace_parent=parent)
        return sink.closing()

    return EventStream(produce, keepalive_s=service.settings.limits.keepalive_s, headers=call.headers)


def answer_json(call: Call, answer: Answer) -> Json:
    """A whole answer as OpenAI writes it."""
    body: Json = {
        "id": call.response_id,
        "object": call.form.object_name,
        "created": call.created,
        "model": call.model.name,
        "system_fingerprint": fingerprint(call.model),
        "choices": [call.form.choice(index, choice, call=call) for index, choice in enumerate(answer.choices)],
        "usage": answers.usage_json(answer.figures.usage),
    }
    if call.has_metrics:
        body["metrics"] = answers.metrics_json(answer.figures)
    return body | call.form.more(call)


class StreamSink:
    """Writes the events of a call to its stream, one write per event."""

    def __init__(self, call: Call, writer: EventWriter) -> None:
        self._call = call
        self._writer = writer
        self._frames = Frames(
            call.form.shape,
            response_id=call.response_id,
            created=call.created,
            model=call.model.name,
            fingerprint=fingerprint(call.model),
        )
        self._is_plain = not (call.has_logprobs or call.has_token_ids or call.continuous_usage)
        self._figures = Figures()  # of what has finished
        self._so_far = Figures()  # of what has been sent

    async def add(self, prompt_index: int, event: GenerationEvent) -> None:
        """A sink for `Runner.run`."""
        match event:
            case TextChunk():
                frames = self._chunk(prompt_index * self._call.n + event.index, event)
            case Started():
                frames = self._start(prompt_index, event)
            case Finished():
                self._figures.add(event)
                return
        if frames:
            await self._writer.write(frames)

    def closing(self) -> str:
        """The frame after the last choice has ended, if usage or metrics are wanted."""
        more: Json = {}
        if self._call.includes_usage:
            more["usage"] = answers.usage_json(self._figures.usage)
        if self._call.has_metrics:
            more["metrics"] = answers.metrics_json(self._figures)
        return self._frames.closing(more) if more else ""

    def _start(self, prompt_index: int, event: Started) -> str:
        self._so_far.num_prompt_tokens += event.num_prompt_tokens
        self._so_far.num_cached_tokens += event.num_cached_tokens
        first = prompt_index * self._call.n
        return "".join(self._frames.first(index) for index in range(first, first + self._call.n))

    def _chunk(self, index: int, event: TextChunk) -> str:
        if self._is_plain:
            frames = self._frames.text(index, event.text) if event.text else ""
        else:
            frames = self._detailed(index, event)
        if event.finish_reason is not None:
            reason = answers.stop_reason(event)
            frames += self._frames.finish(index, event.finish_reason, stop_reason=reason, usage=self._usage_so_far())
        return frames

    def _detailed(self, index: int, event: TextChunk) -> str:
        """The frame of a chunk whose client wants to know more than its text."""
        call = self._call
        self._so_far.num_completion_tokens += len(event.token_ids)
        if not (event.text or event.token_ids):
            return ""
        logprobs = to_json(call.form.logprobs(index, event.logprobs)) if call.has_logprobs else "null"
        token_ids = event.token_ids if call.has_token_ids else None
        extras = Extras(logprobs=logprobs, token_ids=token_ids, usage=self._usage_so_far())
        return self._frames.text_with(index, event.text, extras=extras)

    def _usage_so_far(self) -> str | None:
        return to_json(answers.usage_json(self._so_far.usage)) if self._call.continuous_usage else None
