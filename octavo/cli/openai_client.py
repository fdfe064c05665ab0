"""The little of the OpenAI HTTP API that `octavo chat` speaks: which models there are, and a streamed answer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from octavo.cli.server_address import CannotAsk, no_model_at, nobody_at, refusal

Message = Mapping[str, str]
# A model may think for long before its first token; a server that is there accepts a connection at once.
_TIMEOUT = httpx.Timeout(connect=5.0, read=600.0, write=30.0, pool=5.0)


class OpenAIClient:
    """Talks to one server. Raises CannotAsk for everything that goes wrong."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._http = httpx.Client(base_url=url, headers=dict(headers), timeout=_TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def first_model(self) -> str:
        """The name of the model that the server lists first."""
        try:
            answer = self._http.get("/v1/models")
        except httpx.TransportError as refused:
            raise nobody_at(self._url, refused) from None
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer)
        models = answer.json()["data"]
        if not models:
            raise no_model_at(self._url)
        return str(models[0]["id"])

    def chat(self, model: str, messages: Sequence[Message], **options: Any) -> Iterator[str]:
        """The answer's text as it comes. Closing the iterator ends the request."""
        body = {"model": model, "messages": list(messages), "stream": True, **options}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise refusal(answer)
                for line in answer.iter_lines():
                    yield from _text(line)
        except httpx.TransportError as refused:
            raise nobody_at(self._url, refused) from None


def _text(line: str) -> Iterator[str]:
    """The new text in one line of the event stream, if any."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise CannotAsk(f"the server broke off: {event['error'].get('message', event['error'])}")
    for choice in event["choices"]:
        if text := choice["delta"].get("content"):
            yield text
