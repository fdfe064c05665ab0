"""Probes and figures for machines: /health and its kin, /version, /load, /metrics."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import octavo
from gateway.core.generation import ServingState
from gateway.openai.service import Service
from octavo import metrics

_GET = ["GET", "HEAD"]
_RETRY_AFTER_S = 1


def router(service: Service) -> APIRouter:
    """The endpoints. None of them waits for the model or the scheduler."""
    routes = APIRouter()

    @routes.api_route("/health", methods=_GET)
    @routes.api_route("/v1/health", methods=_GET)
    @routes.api_route("/ping", methods=_GET)
    @routes.api_route("/readyz", methods=_GET)
    async def ready() -> Response:
        return readiness(service.generator.serving_state)

    @routes.api_route("/livez", methods=_GET)
    async def live() -> Response:
        return JSONResponse({"status": "alive"})

    @routes.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": octavo.__version__})

    @routes.get("/load")
    async def load() -> Response:
        running, waiting = service.load.num_running, service.load.num_waiting
        return JSONResponse({"server_load": running + waiting, "running": running, "waiting": waiting})

    @routes.get("/metrics")
    async def prometheus(request: Request) -> Response:
        body, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return routes


def readiness(state: ServingState) -> Response:
    """200 exactly when a request sent now would be served."""
    if state.is_ready:
        return JSONResponse({"status": "ready"})
    body = {"status": "not_ready", "cause": state.cause, "reason": state.reason}
    return JSONResponse(body, 503, headers={"Retry-After": str(_RETRY_AFTER_S)})
