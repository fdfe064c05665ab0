"""POST /tokenize and /detokenize, in vLLM's shapes."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.core.generation import ChatPrompt, TextPrompt
from gateway.core.limits import InvalidParameter
from gateway.openai import conversion
from gateway.openai.body import warning_headers
from gateway.openai.logprobs import token_text
from gateway.openai.protocol import DetokenizeBody, TokenizeBody
from gateway.openai.service import Service


def router(service: Service) -> APIRouter:
    """The endpoints, with and without /v1."""
    routes = APIRouter()
    generator = service.generator

    @routes.post("/tokenize")
    @routes.post("/v1/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await service.bodies.read(request, TokenizeBody)
        model = generator.model(body.model or "")
        tokens = await generator.tokenize(prompt_of(body), model=model.name)
        strings = [token_text(generator.token_bytes(token)) for token in tokens] if body.return_token_strs else None
        answer = {
            "count": len(tokens),
            "max_model_len": model.max_model_len,
            "tokens": list(tokens),
            "token_strs": strings,
        }
        return JSONResponse(answer, headers=warning_headers(body))

    @routes.post("/detokenize")
    @routes.post("/v1/detokenize")
    async def detokenize(request: Request) -> Response:
        body = await service.bodies.read(request, DetokenizeBody)
        model = generator.model(body.model or "")
        text = await generator.detokenize(body.tokens, model=model.name)
        return JSONResponse({"prompt": text}, headers=warning_headers(body))

    return routes


def prompt_of(body: TokenizeBody) -> TextPrompt | ChatPrompt:
    """What to encode. Raises InvalidParameter unless it is exactly one of text and chat."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameter("prompt", "send either prompt or messages")
    if body.prompt is not None:
        return TextPrompt(text=body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return conversion.chat_prompt(body)
