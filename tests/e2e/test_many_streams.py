"""Many clients at once, clients that go away, and clients that send nonsense: nobody else notices."""

import asyncio
import json
import time
from collections.abc import Mapping

import httpx
import pytest

from tests.e2e.stack import Stack

NUM_STREAMS = 256
DISTINCT = [f"Item number {number}: the" for number in range(16)]


def completion(prompt: str, **more: object) -> dict[str, object]:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **more}


async def stream(client: httpx.AsyncClient, url: str, body: Mapping[str, object]) -> str:
    text, is_done = "", False
    async with client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                frame = json.loads(line.removeprefix("data: "))
                assert "error" not in frame, frame
                text += "".join(choice["text"] for choice in frame["choices"])
    assert is_done
    return text


@pytest.mark.slow
def test_256_streams_at_once_all_end_and_none_is_mixed_up(stack: Stack) -> None:
    async def run() -> tuple[list[str], list[str]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=240, limits=limits) as client:
            alone = [await stream(client, stack.url, completion(prompt)) for prompt in DISTINCT]
            bodies = [completion(DISTINCT[i % len(DISTINCT)]) for i in range(NUM_STREAMS)]
            return alone, await asyncio.gather(*(stream(client, stack.url, body) for body in bodies))

    alone, together = asyncio.run(run())
    assert len(set(alone)) > 1
    assert together == [alone[i % len(alone)] for i in range(NUM_STREAMS)]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(stack: Stack, streaming: bool) -> None:
    body = completion("Once upon a time", max_tokens=4000, stream=streaming)
    if streaming:
        with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            for _ in range(6):
                next(lines)
            assert stack.pool_figures().num_held > 0
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{stack.url}/v1/completions", json=body, timeout=httpx.Timeout(60, read=2))
    deadline = time.monotonic() + 5
    while stack.pool_figures().num_held and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stack.pool_figures().num_held == 0


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b'{"prompt": "a", "model": "no-such-model"}', 404, "no-such-model"),
        (b"{not json", 400, "JSON"),
        (b'{"prompt": "\xff\xfe"}', 400, "unicode"),
        (b'{"prompt": "a", "max_tokens": "many"}', 400, "max_tokens"),
        (b'{"prompt": "a", "temperature": -1}', 400, "temperature"),
        (b'{"prompt": "a", "top_p": 0}', 400, "top_p"),
        (b'{"prompt": ""}', 400, "prompt"),
        (b'{"prompt": []}', 400, "prompt"),
        (b'{"prompt": [999999999]}', 400, "999999999"),
        (b'{"prompt": [-1]}', 400, "prompt"),
        (b"[]", 400, ""),
        (b"", 400, ""),
        (b'{"max_tokens": 5}', 400, "prompt"),
        (json.dumps({"prompt": "word " * 20000}).encode(), 400, "maximum context length"),
    ],
)
def test_bad_input_gets_a_clear_answer_and_harms_nobody(stack: Stack, content: bytes, status: int, says: str) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{stack.url}/v1/completions", content=content, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    assert says.lower() in answer.json()["error"]["message"].lower()
    good = httpx.post(f"{stack.url}/v1/completions", json=completion("The capital of France is"), timeout=60)
    assert "Paris" in good.json()["choices"][0]["text"]
