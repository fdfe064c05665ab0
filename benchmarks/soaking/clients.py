"""One request after the other on every public port, most of which end early: left by the client before or after the
first token, overtaken by a deadline, refused, cut by the death of a process.

What came of each is a word. Only what no client may ever see is a mistake: see `Outcomes`.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx

from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub

WORDS = ("hello", "shell", "the cell", "he held", "a bell", "yellow", "help", "jelly")
NUM_PREFIXES = 6
PREFIX_CHARS = 160
MAX_TOKENS = 40
RETRY_PAUSE_S = 0.5
TENANTS = ("", "a", "b")
PATIENCE_S = 60.0  # beyond any pause; a request that takes longer hangs
# Told by a server that is restarting or full, or by the connection of a gateway that was killed.
RETRYABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
RETRYABLE_HTTP = frozenset({429, 503})


@dataclass(slots=True)
class Outcomes:
    """How requests ended."""

    counts: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)

    def mistake(self, what: str) -> str:
        self.mistakes.append(what)
        return "mistake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, and how its client behaves."""

    prompt: str
    tenant: str
    max_tokens: int
    n: int
    temperature: float
    stop: tuple[str, ...]
    deadline_s: float | None
    leaves_after_s: float | None  # before or after the first token, as it happens
    leaves_after_events: int | None


def draw(rng: random.Random) -> Asked:
    """A request as `rng` has it: shared prefixes, several answers, stop strings, deadlines, impatience."""
    prefix = (f"no {rng.randrange(NUM_PREFIXES)} " * PREFIX_CHARS)[:PREFIX_CHARS] if rng.random() < 0.6 else ""
    text = prefix + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 20)))
    end = rng.random()
    return Asked(
        prompt=text,
        tenant=rng.choice(TENANTS),
        max_tokens=rng.randint(1, MAX_TOKENS),
        n=rng.choice((1, 1, 1, 1, 2, 3)),
        temperature=rng.choice((0.0, 1.0)),
        stop=("zz", "el") if rng.random() < 0.2 else (),
        deadline_s=rng.uniform(0.001, 0.3) if 0.3 <= end < 0.45 else None,
        leaves_after_s=rng.uniform(0, 0.15) if end < 0.15 else None,
        leaves_after_events=rng.randint(1, 4) if 0.15 <= end < 0.3 else None,
    )


class Clients:
    """Over HTTP and gRPC, with connections of their own that are made again now and then."""

    def __init__(self, http_url: str, grpc_addr: str, *, rng: random.Random, outcomes: Outcomes) -> None:
        self._http_url = http_url
        self._grpc_addr = grpc_addr
        self._rng = rng
        self._outcomes = outcomes

    async def ask(self, num_requests: int) -> None:
        """`num_requests` in a row, over one connection each kind."""
        async with (
            httpx.AsyncClient(base_url=self._http_url, timeout=PATIENCE_S) as http,
            grpc.aio.insecure_channel(self._grpc_addr) as channel,
        ):
            for _ in range(num_requests):
                word = await self._one(http, channel, draw(self._rng))
                self._outcomes.counts[word] += 1
                if word in ("refused", "broken"):
                    await asyncio.sleep(RETRY_PAUSE_S)

    async def _one(self, http: httpx.AsyncClient, channel: grpc.aio.Channel, asked: Asked) -> str:
        try:
            async with asyncio.timeout(asked.leaves_after_s):
                match self._rng.choice(("grpc", "stream", "whole")):
                    case "grpc":
                        return await self._by_grpc(channel, asked)
                    case shape:
                        return await self._by_http(http, asked, is_stream=shape == "stream")
        except TimeoutError:
            return "left early"

    async def _by_grpc(self, channel: grpc.aio.Channel, asked: Asked) -> str:
        request = pb.GenerateRequest(
            text=asked.prompt,
            sampling=pb.SamplingParams(temperature=asked.temperature, n=asked.n),
            stopping=pb.StopParams(max_tokens=asked.max_tokens, ignore_eos=True, stop_sequences=asked.stop),
        )
        call = InferenceServiceStub(channel).Generate(
            request, timeout=asked.deadline_s or PATIENCE_S, metadata=(("x-tenant-id", asked.tenant),)
        )
        num_events = 0
        try:
            async for _ in call:
                num_events += 1
                if num_events == asked.leaves_after_events:
                    call.cancel()
                    return "left"
        except grpc.aio.AioRpcError as error:
            return self._failed(error, asked)
        except asyncio.CancelledError:
            if not call.cancelled():
                call.cancel()
            raise
        return "finished"

    def _failed(self, error: grpc.aio.AioRpcError, asked: Asked) -> str:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and asked.deadline_s is not None:
            return "deadline"
        return "refused" if code in RETRYABLE else self._outcomes.mistake(f"{code.name}: {error.details()} for {asked}")

    async def _by_http(self, http: httpx.AsyncClient, asked: Asked, *, is_stream: bool) -> str:
        body: dict[str, Any] = {
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "n": asked.n,
            "stop": list(asked.stop),
            "ignore_eos": True,
            "stream": is_stream,
        }
        if self._rng.random() < 0.5:
            path, body["prompt"] = "/v1/completions", asked.prompt
        else:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": asked.prompt}]
        headers = {"x-tenant-id": asked.tenant}
        if asked.deadline_s is not None:
            headers["x-request-timeout-ms"] = str(round(asked.deadline_s * 1e3) or 1)
        try:
            async with http.stream("POST", path, json=body, headers=headers) as response:
                return await self._read(response, asked, is_stream=is_stream)
        except httpx.TransportError:  # the gateway was killed
            return "broken"

    async def _read(self, response: httpx.Response, asked: Asked, *, is_stream: bool) -> str:
        if response.status_code in RETRYABLE_HTTP:
            return "refused"
        if response.status_code == httpx.codes.GATEWAY_TIMEOUT and asked.deadline_s is not None:
            return "deadline"
        if response.status_code != httpx.codes.OK:
            return self._outcomes.mistake(f"{response.status_code}: {(await response.aread())!r} for {asked}")
        num_events, last = 0, ""
        async for line in response.aiter_lines():
            num_events += line.startswith("data:")
            last = line or last
            if '"error":' in line:
                return self._error_event(line, asked)
            if is_stream and num_events == asked.leaves_after_events:
                return "left"
        if is_stream and last != "data: [DONE]":
            return self._outcomes.mistake(f"a stream ended with {last!r} for {asked}")
        return "finished"

    def _error_event(self, line: str, asked: Asked) -> str:
        if '"code":"deadline_exceeded"' in line or '"type":"timeout"' in line:
            return "deadline"
        if any(f'"code":"{code}"' in line for code in ("scheduler_unreachable", "no_worker", "server_draining")):
            return "refused"
        return self._outcomes.mistake(f"{line} for {asked}")
