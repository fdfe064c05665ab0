"""GET /v1/models and /v1/models/{name}."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from gateway.core.generation import ModelEntry
from gateway.openai.json_value import Json
from gateway.openai.service import Service


def router(service: Service) -> APIRouter:
    """The endpoints. They work before the model is ready, and need no key."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def list_models() -> Response:
        data = [
            model_json(model, name) for model in service.generator.models() for name in (model.name, *model.aliases)
        ]
        return JSONResponse({"object": "list", "data": data})

    @routes.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        model = service.generator.model(name)
        return JSONResponse(model_json(model, name))

    return routes


def model_json(model: ModelEntry, name: str) -> Json:
    """A model under one of its names; `root` is the first of them."""
    return {
        "id": name,
        "object": "model",
        "created": int(model.created_s),
        "owned_by": "octavo",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
    }
