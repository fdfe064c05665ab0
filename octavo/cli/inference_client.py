"""The public gRPC API as the command line uses it. The only place here that knows its messages."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Self

import grpc

from octavo import client, errors
from octavo.cli.server_address import CannotAsk, no_model_at, nobody_at
from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1 import inference_pb2_grpc as pb_grpc

CONNECT_TIMEOUT_S = 5.0
TARGET_FLAG = "--target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: a prompt as text, as one chat message, or as token ids, and how to continue it."""

    text: str | None = None
    chat: str | None = None
    token_ids: Sequence[int] | None = None
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one finished request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


class InferenceClient:
    """Talks to one gateway. Raises CannotAsk for everything that goes wrong."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._channel = client.channel(target)
        self._stub = pb_grpc.InferenceServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def generate(self, ask: Ask) -> AsyncGenerator[str | Usage, None]:
        """The answer's text as it comes, then what it used. Leaving the iteration cancels the call."""
        call = self._stub.Generate(_request(ask))
        try:
            async for response in call:
                match response.WhichOneof("event"):
                    case "chunk":
                        yield response.chunk.text
                    case "finished":
                        yield _usage(response.finished.usage)
        except grpc.aio.AioRpcError as error:
            raise self._problem(error) from None
        finally:
            call.cancel()

    async def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, without the special tokens around it."""
        request = pb.TokenizeRequest(text=text, add_special_tokens=False)
        try:
            return list((await self._stub.Tokenize(request, timeout=CONNECT_TIMEOUT_S)).token_ids)
        except grpc.aio.AioRpcError as error:
            raise self._problem(error) from None

    async def first_model(self) -> str:
        """The name of the model that the server lists first."""
        try:
            answer = await self._stub.ListModels(pb.ListModelsRequest(), timeout=CONNECT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._problem(error) from None
        if not answer.models:
            raise no_model_at(self._target)
        return str(answer.models[0].name)

    def _problem(self, error: grpc.aio.AioRpcError) -> CannotAsk:
        failure = errors.from_rpc_error(error)
        if failure.code is grpc.StatusCode.UNAVAILABLE and failure.reason == errors.PEER_REASON:
            return nobody_at(self._target, failure.message, TARGET_FLAG)
        return CannotAsk(f"{self._target} answered {failure.code.name}: {failure.message}")


def _request(ask: Ask) -> pb.GenerateRequest:
    request = pb.GenerateRequest(model=ask.model)
    if ask.token_ids is not None:
        request.token_ids.ids.extend(ask.token_ids)
    elif ask.chat is not None:
        request.chat.messages.add(role="user", content=ask.chat)
    else:
        request.text = ask.text or ""
    if ask.temperature is not None:
        request.sampling.temperature = ask.temperature
    if ask.seed is not None:
        request.sampling.seed = ask.seed
    if ask.max_tokens is not None:
        request.stopping.max_tokens = ask.max_tokens
    request.stopping.ignore_eos = ask.ignore_eos
    return request


def _usage(usage: pb.Usage) -> Usage:
    return Usage(
        num_prompt_tokens=usage.prompt_tokens,
        num_output_tokens=usage.completion_tokens,
        num_cached_tokens=usage.cached_tokens,
    )
