"""A server that speaks the OpenAI HTTP API, ours or another: streamed completions with token ids as prompt."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx

from octavo.cli.bench import sse_connection
from octavo.cli.bench.figures import Sample
from octavo.cli.server_address import no_model_at, nobody_at, refusal

TIMEOUT_S = 10.0


class HttpTarget:
    """Opens a connection per request, as independent clients do."""

    def __init__(self, url: str, headers: Mapping[str, str], *, model: str | None) -> None:
        self._url = url
        self._headers = headers
        self._model = model

    async def model(self) -> str:
        if self._model is None:
            answer = await self._ask("GET", "/v1/models")
            models = answer.json()["data"]
            if not models:
                raise no_model_at(self._url)
            self._model = str(models[0]["id"])
        return self._model

    async def tokenize(self, text: str) -> list[int]:
        answer = await self._ask("POST", "/tokenize", json={"prompt": text, "add_special_tokens": False})
        return [int(token_id) for token_id in answer.json()["tokens"]]

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, *, on_text: Callable[[], None] = lambda: None
    ) -> Sample:
        """Calls `on_text` whenever text arrives."""
        body = {
            "model": await self.model(), "prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        url = f"{self._url}/v1/completions"
        data = json.dumps(body).encode()
        sample = Sample(sent_at=time.perf_counter(), num_prompt_tokens=len(prompt))
        try:
            await _read(sse_connection.post(url, data, self._headers), sample, on_text)
        except (sse_connection.HttpError, OSError, EOFError, TimeoutError) as failed:
            sample.error = str(failed) or type(failed).__name__
        return sample

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            async with httpx.AsyncClient(headers=dict(self._headers), timeout=TIMEOUT_S, trust_env=False) as http:
                answer = await http.request(method, f"{self._url}{path}", **options)
        except httpx.TransportError as refused:
            raise nobody_at(self._url, refused) from None
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer)
        return answer


async def _read(lines: AsyncIterator[bytes], sample: Sample, on_text: Callable[[], None]) -> None:
    """Note when text came, and the usage of the last event."""
    async for line in lines:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            sample.error = str(event["error"].get("message", event["error"]))
            return
        if event.get("choices"):
            sample.arrived_at.append(now)
            on_text()
        if usage := event.get("usage"):
            sample.num_prompt_tokens = usage["prompt_tokens"]
            sample.num_output_tokens = usage["completion_tokens"]
            sample.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
