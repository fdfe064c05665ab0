"""The public gRPC API without a model: it answers with the words of the prompt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1 import inference_pb2_grpc as pb_grpc

MODEL = "echo-1"
CACHED_TOKENS = 16


class InferenceServer(pb_grpc.InferenceServiceServicer):
    """Keeps what it was asked; "slow" in a prompt never ends."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.gone = asyncio.Event()  # a client left in mid-stream

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        if request.model not in ("", MODEL):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no model {request.model}")
        words = prompt_of(request).split(" ")
        if request.stopping.ignore_eos:
            words = ["x"] * request.stopping.max_tokens
        yield pb.GenerateResponse(started=pb.Started(model=MODEL))
        for word in words:
            yield pb.GenerateResponse(chunk=pb.Chunk(text=f"{word} "))
        if "slow" in words:
            try:
                await asyncio.sleep(60)
            finally:
                self.gone.set()
        num_prompt_tokens = len(request.token_ids.ids) or len(words)
        usage = pb.Usage(prompt_tokens=num_prompt_tokens, completion_tokens=len(words), cached_tokens=CACHED_TOKENS)
        yield pb.GenerateResponse(finished=pb.Finished(usage=usage))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=[ord(letter) for letter in request.text], max_model_len=512)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[pb.Model(name=MODEL)])


def prompt_of(request: pb.GenerateRequest) -> str:
    return request.text or " ".join(message.content for message in request.chat.messages)


@asynccontextmanager
async def running(servicer: InferenceServer) -> AsyncIterator[str]:
    """Serves on a free port; yields host:port."""
    server = grpc.aio.server()
    pb_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
