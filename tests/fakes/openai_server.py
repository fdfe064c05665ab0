"""A small OpenAI-compatible server without a model: it answers with the words it was sent, or as slowly as asked."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MODEL = "echo-1"
CACHED_TOKENS = 16  # of every prompt, as usage and counters say


class OpenAIServer:
    """An ASGI application. Chats echo the last message; "slow" never ends, "boom" breaks off."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.gone = threading.Event()  # a client left in mid-stream
        self.is_ready = True
        self._num_queried = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope
        match scope["path"]:
            case "/v1/models":
                await answer(send, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            case "/tokenize":
                body = await self._body(receive)
                await answer(send, {"tokens": [ord(letter) for letter in body["prompt"]], "max_model_len": 512})
            case "/v1/chat/completions":
                await self._chat(await self._body(receive), receive, send)
            case "/v1/completions":
                await self._complete(await self._body(receive), send)
            case "/metrics":
                await answer_text(send, self._metrics())
            case "/readyz":
                await answer(send, {"reason": "loading weights"}, 200 if self.is_ready else 503)
            case "/load":
                await answer(send, {"running": 1, "waiting": 2})
            case _:
                await answer(send, {"error": {"message": f"there is no {scope['path']}"}}, 404)

    async def _body(self, receive: Receive) -> dict[str, Any]:
        data = b""
        while True:
            message = await receive()
            data += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(json.loads(data))
        return self.bodies[-1]

    async def _chat(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        if body["model"] != MODEL:
            return await answer(send, {"error": {"message": f"there is no model {body['model']}"}}, 404)
        words = f"you said {body['messages'][-1]['content']}".split(" ")
        await start(send, 200, "text/event-stream")
        await event(send, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for word in words:
            await event(send, {"choices": [{"delta": {"content": f" {word}"}}]})
        if "slow" in words:
            while (await receive())["type"] != "http.disconnect":
                pass
            return self.gone.set()
        if "boom" in words:
            await event(send, {"error": {"message": "it broke"}})
        return await done(send)

    async def _complete(self, body: dict[str, Any], send: Send) -> None:
        num_prompt_tokens = len(body["prompt"])
        self._num_queried += num_prompt_tokens
        await start(send, 200, "text/event-stream")
        for _ in range(body["max_tokens"]):
            await event(send, {"choices": [{"text": "x"}]})
            await asyncio.sleep(0.002)
        usage = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        }
        await event(send, {"choices": [], "usage": usage})
        await done(send)

    def _metrics(self) -> str:
        queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
        return f'{queries}{{engine="0"}} {self._num_queried}\n{hits}{{engine="0"}} {self._num_queried / 4}\n'


@contextmanager
def running() -> Iterator[OpenAIServer]:
    """The server on a free port, in a thread of its own."""
    app = OpenAIServer()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, name="openai-server")
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the fake server did not start"
        thread.join(0.01)
    app.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield app
    finally:
        server.should_exit = True
        thread.join()


async def start(send: Send, status: int, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send: Send, content: dict[str, Any], status: int = 200) -> None:
    await start(send, status, "application/json")
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def answer_text(send: Send, text: str) -> None:
    await start(send, 200, "text/plain")
    await send({"type": "http.response.body", "body": text.encode()})


async def event(send: Send, content: dict[str, Any]) -> None:
    body = f"data: {json.dumps(content)}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def done(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
