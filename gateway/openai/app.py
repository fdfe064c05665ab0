"""Puts the HTTP surface together."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException

import octavo
from gateway.config import GatewayConfig
from gateway.generator import Generator
from gateway.openai import chat, completions, health, models, service, status_page, tokenize
from gateway.openai.edge import Edge
from gateway.openai.errors import answer_http_exception


def create_app(generator: Generator, settings: GatewayConfig) -> FastAPI:
    """The ASGI application that serves `generator` to OpenAI clients."""
    shared = service.build(generator, settings)
    app = FastAPI(
        title="Octavo",
        version=octavo.__version__,
        openapi_url=None,  # bodies are read by our own code, so a generated schema would not show them
        redirect_slashes=False,  # Edge has tidied the path
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.add_middleware(Edge)
    for part in (chat, completions, models, tokenize, health, status_page):
        app.include_router(part.router(shared))
    return app
