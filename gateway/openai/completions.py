"""POST /v1/completions."""

from collections import defaultdict
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.generation import PositionLogprobs
from gateway.openai import call, conversion, exchange, frames, responding
from gateway.openai.answers import Choice
from gateway.openai.call import Call
from gateway.openai.json_value import Json
from gateway.openai.logprobs import CompletionLogprobs
from gateway.openai.protocol import CompletionBody
from gateway.openai.refusals import refuse_unsupported
from gateway.openai.service import Service


def router(service: Service) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        body = await service.bodies.read(request, CompletionBody)
        refuse_unsupported(body)
        built = await call.build(
            service,
            body,
            here=exchange.current(request.scope),
            form=CompletionForm(),
            prompts=conversion.completion_prompts(body),
            num_logprobs=conversion.completion_num_logprobs(body),
        )
        return await responding.respond(service, request, call=built, is_stream=bool(body.stream))

    return routes


class CompletionForm:
    """How text completions look: one choice per prompt and answer, prompt by prompt."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    shape = frames.COMPLETION
    max_tokens: int | None = conversion.COMPLETION_MAX_TOKENS

    def __init__(self) -> None:
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)

    def choice(self, index: int, choice: Choice, *, call: Call) -> Json:
        """One answer: a text."""
        assert choice.finish_reason is not None, f"choice {index} has not ended"
        answer: Json = {
            "index": index,
            "text": choice.text,
            "logprobs": self.logprobs(index, choice.logprobs) if call.has_logprobs else None,
            "finish_reason": choice.finish_reason.value,
            "stop_reason": choice.stop_reason,
        }
        if call.has_token_ids:
            answer |= {"token_ids": choice.token_ids, "prompt_token_ids": call.prompt_token_ids(index // call.n)}
        return answer

    def more(self, call: Call) -> Json:
        """Nothing: what belongs to a prompt is in its choices."""
        return {}

    def logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> Json:
        """Of the next positions of a choice."""
        return self._logprobs[index].add(positions)
