"""POST /v1/chat/completions."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.generation import PositionLogprobs
from gateway.openai import call, conversion, exchange, frames, responding
from gateway.openai.answers import Choice
from gateway.openai.call import Call
from gateway.openai.json_value import Json
from gateway.openai.logprobs import chat_logprobs
from gateway.openai.protocol import ChatCompletionBody
from gateway.openai.refusals import refuse_unsupported
from gateway.openai.service import Service


def router(service: Service) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        body = await service.bodies.read(request, ChatCompletionBody)
        refuse_unsupported(body)
        built = await call.build(
            service,
            body,
            here=exchange.current(request.scope),
            form=ChatForm(),
            prompts=[conversion.chat_prompt(body)],
            num_logprobs=conversion.chat_num_logprobs(body),
        )
        return await responding.respond(service, request, call=built, is_stream=bool(body.stream))

    return routes


class ChatForm:
    """How chat completions look."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    shape = frames.CHAT
    max_tokens: int | None = None

    def choice(self, index: int, choice: Choice, *, call: Call) -> Json:
        """One answer: a message of the assistant."""
        assert choice.finish_reason is not None, f"choice {index} has not ended"
        answer: Json = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs) if call.has_logprobs else None,
            "finish_reason": choice.finish_reason.value,
            "stop_reason": choice.stop_reason,
        }
        return answer | {"token_ids": choice.token_ids} if call.has_token_ids else answer

    def more(self, call: Call) -> Json:
        """The prompt's token ids, if asked for."""
        return {"prompt_token_ids": call.prompt_token_ids(0)} if call.has_token_ids else {}

    def logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> Json:
        """Of any positions: nothing is carried on between them."""
        return chat_logprobs(positions)
