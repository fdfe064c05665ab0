"""Sends a request of the load over the OpenAI HTTP API, and tells what came and how it ended.

Strict about the protocol: an event that should not be there is noted in the transcript.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.attempt import Attempt, Ending
from tests.chaos.requests import Request, Way
from tests.chaos.transcript import Piece, Score, Transcript, Usage

CONNECT_LIMIT_S = 5.0
STREAM_SILENCE_S = 40.0  # a stream has a comment every 15 s of silence; its server may be stopped
WHOLE_SILENCE_S = 180.0  # before a whole answer there is nothing, and on a busy machine a token may take 2 s
RETRIED_CODES = ("rate_limit_exceeded", "model_loading", "server_draining", "no_worker", "no_progress")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _End:
    """How a try ended, as Attempt has it."""

    ending: Ending
    detail: str = ""
    retry_after_s: float | None = None


class HttpClient:
    """Keeps connections open between requests, as OpenAI's client does."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def attempt(self, request: Request, transcript: Transcript, *, deadline_s: float | None) -> Attempt:
        """Send it once and write down what comes. `deadline_s` is what is left of the time that the client gives."""
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(request.leave_after_s):
                end = await self._exchange(request, transcript, deadline_s)
        except TimeoutError:
            end = _End(Ending.LEFT)
        except httpx.ReadTimeout:
            end = _End(Ending.SILENT)
        except httpx.TransportError as broken:
            end = _End(Ending.BROKEN, repr(broken))
        return Attempt(
            started_s=started_s,
            ended_s=time.monotonic(),
            transcript=transcript,
            ending=end.ending,
            detail=end.detail,
            retry_after_s=end.retry_after_s,
        )

    async def _exchange(self, request: Request, transcript: Transcript, deadline_s: float | None) -> _End:
        headers = {} if deadline_s is None else {"x-request-timeout-ms": str(max(1, int(deadline_s * 1000)))}
        path = "/v1/chat/completions" if _is_chat(request) else "/v1/completions"
        silence_s = STREAM_SILENCE_S if request.way.is_stream else WHOLE_SILENCE_S
        timeout = httpx.Timeout(silence_s, connect=CONNECT_LIMIT_S)
        async with self._http.stream("POST", path, json=body(request), headers=headers, timeout=timeout) as response:
            if response.status_code != httpx.codes.OK:
                return _refusal(response, await response.aread())
            if not request.way.is_stream:
                _read_whole(json.loads(await response.aread()), request, transcript)
                return _End(Ending.COMPLETE)
            return await _read_events(response, request, transcript)


async def _read_events(response: httpx.Response, request: Request, transcript: Transcript) -> _End:
    """Read to the end of the stream, so that the connection can be used again and nothing behind the end is missed."""
    events = _Events(request, transcript)
    async for line in response.aiter_lines():
        events.read(line)
        if events.ending is Ending.LEFT:
            break  # leaving the response closes its connection
    if events.ending is None:
        return _End(Ending.BROKEN, "the stream ended without [DONE]")
    return _End(events.ending, events.detail)


def body(request: Request) -> dict[str, object]:
    """The JSON of a request."""
    content: dict[str, object] = {
        "max_tokens": request.max_tokens, "temperature": request.temperature, "top_p": request.top_p, "n": request.n,
        "seed": request.seed, "ignore_eos": request.ignore_eos, "stream": request.way.is_stream,
        "return_token_ids": True,
    }  # fmt: skip
    if request.stop:
        content["stop"] = list(request.stop)
    if request.way.is_stream:
        content["stream_options"] = {"include_usage": True}
    if _is_chat(request):
        content["messages"] = request.prompt
        if request.top_logprobs is not None:
            content |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    else:
        content["prompt"] = request.prompt
        if request.top_logprobs is not None:
            content["logprobs"] = request.top_logprobs
    return content


class _Events:
    """Reads the lines of an event stream. `ending` says how it ended, once it has."""

    def __init__(self, request: Request, transcript: Transcript) -> None:
        self._request = request
        self._transcript = transcript
        self._id: str | None = None
        self._roles: set[int] = set()
        self._failure: Ending | None = None
        self.ending: Ending | None = None
        self.detail = ""

    def read(self, line: str) -> None:
        """Take a line."""
        if not line.startswith("data: "):
            if line and not line.startswith(":"):
                self._transcript.note(f"no event: {line}")
        elif self.ending is not None:
            self._transcript.note(f"an event came after the end: {line}")
        elif line == "data: [DONE]":
            if self._failure is None:
                self._transcript.close()
            self.ending = self._failure or Ending.COMPLETE
        else:
            self._read_frame(json.loads(line.removeprefix("data: ")))

    def _read_frame(self, frame: Json) -> None:
        if "error" in frame:
            self._fail(frame["error"])
            return
        if self._id not in (None, frame["id"]):
            self._transcript.note(f"the answer's id changed from {self._id} to {frame['id']}")
        self._id = frame["id"]
        for choice in frame["choices"]:
            self._read_choice(choice)
        if frame.get("usage") is not None:
            self._transcript.tell_usage(_usage(frame["usage"]))
        limit = self._request.leave_after_events
        if limit is not None and len(self._transcript.arrivals_s) >= limit:
            self.ending = Ending.LEFT

    def _fail(self, error: Json) -> None:
        self.detail = f"event {error}"
        if error["type"] == "timeout":
            self._failure = Ending.DEADLINE
        elif error["code"] in RETRIED_CODES and not self._transcript.has_begun:
            self._failure = Ending.REFUSED
        else:
            self._failure = Ending.FAILED

    def _read_choice(self, choice: Json) -> None:
        if _is_chat(self._request):
            is_begin = "role" in choice["delta"]
            if is_begin == (choice["index"] in self._roles):
                self._transcript.note(f"choice {choice['index']} had its role at the wrong time: {choice}")
            self._roles.add(choice["index"])
        self._transcript.add(_piece(choice, self._request), now_s=time.monotonic())


def _read_whole(answer: Json, request: Request, transcript: Transcript) -> None:
    for choice in answer["choices"]:
        transcript.add(_piece(choice, request), now_s=time.monotonic())
    transcript.tell_usage(_usage(answer["usage"]))
    transcript.close()


def _piece(choice: Json, request: Request) -> Piece:
    """A choice of a whole answer or of a chunk; both have the same fields but for the text's place."""
    place = choice.get("message") or choice.get("delta") or choice
    text = place.get("content" if _is_chat(request) else "text") or ""
    read_scores = _chat_scores if _is_chat(request) else _completion_scores
    return Piece(
        index=choice["index"],
        text=text,
        token_ids=tuple(choice.get("token_ids") or ()),
        scores=() if choice["logprobs"] is None else read_scores(choice["logprobs"]),
        finish_reason=choice["finish_reason"],
        stop_cause=choice.get("stop_reason"),
    )


def _chat_scores(logprobs: Json) -> tuple[Score, ...]:
    return tuple(
        Score(
            token=position["token"],
            logprob=position["logprob"],
            top={token["token"]: token["logprob"] for token in position["top_logprobs"]},
        )
        for position in logprobs["content"]
    )


def _completion_scores(logprobs: Json) -> tuple[Score, ...]:
    columns = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return tuple(Score(token=token, logprob=logprob, top=top) for token, logprob, top in columns)


def _usage(usage: Json) -> Usage:
    return Usage(
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
    )


def _refusal(response: httpx.Response, content: bytes) -> _End:
    detail = f"HTTP {response.status_code} {content.decode(errors='replace')[:300]}"
    match response.status_code:
        case 429 | 503 if "retry-after-ms" in response.headers:
            return _End(Ending.REFUSED, detail, int(response.headers["retry-after-ms"]) / 1000)
        case 504:
            return _End(Ending.DEADLINE, detail)
        case _:
            return _End(Ending.FAILED, detail)


def _is_chat(request: Request) -> bool:
    return request.way in (Way.CHAT_STREAM, Way.CHAT_WHOLE)
