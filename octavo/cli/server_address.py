"""Where the client commands find a server, and what they say when there is none."""

import os
from collections.abc import Mapping

import httpx

HTTP_DEFAULT = "http://127.0.0.1:8000"
GRPC_DEFAULT = "127.0.0.1:50051"
URL_VARIABLE = "OCTAVO_URL"
KEY_VARIABLE = "OCTAVO_API_KEY"


class CannotAsk(Exception):
    """The server is not there or refused; the message is one line for a person."""


class NobodyAnswers(CannotAsk):
    """No server at an address; `what` says so without advice."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what = what


def http_url(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The server's base URL without a path: flag, then OCTAVO_URL, then this machine's port 8000."""
    url = given or environ.get(URL_VARIABLE) or HTTP_DEFAULT
    if "://" not in url:
        url = f"http://{url}"
    return url.rstrip("/").removesuffix("/v1")


def http_headers(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    key = environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def nobody_at(address: str, why: object, flag: str = f"--url or {URL_VARIABLE}") -> NobodyAnswers:
    """The address that was tried, and how to start a server or name another."""
    advice = f"start one with `octavo serve`, or name it with {flag}"
    return NobodyAnswers(f"no server answers at {address} ({why})", advice)


def no_model_at(address: str) -> CannotAsk:
    """A server that lists no model."""
    return CannotAsk(f"{address} serves no model yet; `octavo status` says why")


def refusal(answer: httpx.Response) -> CannotAsk:
    """The words of an error answer; its body must have been read."""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    return CannotAsk(f"{answer.request.url} answered {answer.status_code}: {message}")
