"""What went wrong, as OpenAI clients read it: {"error": {message, type, param, code}} and the status around it.

Which exception means what is `gateway.failures`' table; how a failure looks over HTTP is `octavo.errors`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.core.limits import InvalidParameter
from gateway.failures import STATUSES
from gateway.openai.json_value import Json, named
from octavo import errors, logs
from octavo.errors import Failure, HttpForm

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that left before its answer
_MAX_LISTED_MISTAKES = 3

# What clients ask for that is not here, and what they should use.
_INSTEAD = {
    "/v1/responses": "/v1/chat/completions",
    "/v1/messages": "/v1/chat/completions",
    "/v1/assistants": "/v1/chat/completions",
    "/v1/threads": "/v1/chat/completions",
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/models": "/v1/models",
}
_NO_MODEL_FOR = (
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/audio",
    "/v1/images",
    "/v1/moderations",
)

_log = logs.get(__name__)


class BodyTooLarge(Exception):
    """More bytes than `max_body_bytes`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes, the most that this server reads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as it is sent."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    @property
    def body(self) -> Json:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, self.status, headers=self.headers)


def problem(exc: Exception, request_id: str) -> Problem:
    """What to tell the client. An exception that no table lists is a bug: logged here, and told without details."""
    if isinstance(exc, BodyTooLarge):
        return Problem(status=413, message=str(exc), code="body_too_large")
    failure = errors.from_exception(exc, STATUSES)
    if failure is None:
        _log.exception("http_request_failed", request_id=request_id, error=type(exc).__name__)
        failure = errors.internal(request_id)
    return from_failure(failure)


def from_failure(failure: Failure) -> Problem:
    """A failure in OpenAI's form, with the headers that say when to ask again."""
    form: HttpForm = errors.http_form(failure)
    return Problem(
        status=form.status,
        message=failure.message,
        type=form.type,
        param="model" if form.code == "model_not_found" else failure.field,
        code=form.code,
        headers=errors.retry_headers(failure),
    )


async def answer_http_exception(request: Request, exc: Exception) -> Response:
    """The router's own refusals (no such path, no such method) as a problem."""
    assert isinstance(exc, HTTPException), f"{exc!r} is not the router's"
    allowed = Headers(exc.headers).get("allow", "")
    return routing_problem(exc.status_code, request.method, path=request.url.path, allowed=allowed).response()


def routing_problem(status: int, method: str, *, path: str, allowed: str = "") -> Problem:
    """404 and 405, with what to use instead."""
    if status == 405:
        message = f"{method} is not allowed on {path}; use {allowed}"
        return Problem(status=405, message=message, code="method_not_allowed", headers={"Allow": allowed})
    return Problem(status=status, message=_not_here(method, path), code="unknown_url")


def _not_here(method: str, path: str) -> str:
    if path.startswith(_NO_MODEL_FOR):
        return (
            f"{method} {path} is not offered: this server generates text, see /v1/chat/completions and /v1/completions"
        )
    instead = next((use for prefix, use in _INSTEAD.items() if path.startswith(prefix)), None)
    if instead is not None:
        return f"{method} {path} is not offered here; use {instead}"
    return f"there is no {method} {path}; the API begins at /v1, e.g. /v1/chat/completions, /v1/completions, /v1/models"


def from_validation(error: ValidationError) -> InvalidParameter:
    """One readable sentence about a body that has the wrong shape, naming its first wrong field."""
    mistakes = error.errors(include_url=False)
    first = mistakes[0]
    if first["type"] == "json_invalid":
        return InvalidParameter("", f"the body is not valid JSON: {first['ctx']['error']}")
    if not first["loc"]:
        return InvalidParameter("", f"the body must be a JSON object, got {named(first['input'])}")
    listed = [f"{_path(mistake)} {_complaint(mistake)}" for mistake in mistakes[1:_MAX_LISTED_MISTAKES]]
    more = len(mistakes) - _MAX_LISTED_MISTAKES
    if more > 0:
        listed.append(f"and {more} more")
    return InvalidParameter(_path(first), "; ".join([_complaint(first), *listed]))


def _path(mistake: ErrorDetails) -> str:
    """messages[0].content"""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in mistake["loc"])
    return path.removeprefix(".")


def _complaint(mistake: ErrorDetails) -> str:
    if mistake["type"] == "missing":
        return "is required"
    text = (
        mistake["msg"]
        .replace("Input should be", "must be")
        .replace("a valid ", "a ")
        .replace("a integer", "an integer")
    )
    return f"{text.replace('a array', 'an array')}, got {named(mistake['input'])}"
