"""octavo.inference.v1.InferenceService on the Generator: converts, calls, converts back.

A call that the client leaves, or whose deadline passes, is cancelled here by gRPC; closing the generator's iterator
on the way out cancels it in the scheduler.
"""

import asyncio
from contextlib import aclosing
from typing import Any

from gateway import failures, wire
from gateway.core.generation import GenerationEvent, GenerationRequest, Started
from gateway.core.limits import InvalidParameter
from gateway.generator import Generator
from octavo import telemetry
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.interceptors import text_metadata

SERVICE_NAME = "octavo.inference.v1.InferenceService"

Context = Any  # grpc.aio.ServicerContext; its published types lack half of what it does


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Sends nothing, not even headers, before a request is admitted, so that clients may retry UNAVAILABLE."""

    def __init__(self, generator: Generator, *, stalled_client_s: float) -> None:
        self._generator = generator
        self._stalled_client_s = stalled_client_s

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        wanted = _wanted(request, context)
        events = self._generator.generate(wanted, trace_parent=telemetry.current_context())
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started):
                    await _send_request_id(wanted.correlation_id or event.request_id, context)
                await self._write(wire.response(event, with_token_ids=request.output.token_ids), context)

    async def GenerateOnce(
        self, request: inference_pb2.GenerateOnceRequest, context: Context
    ) -> inference_pb2.GenerateOnceResponse:
        wanted = _wanted(request.request, context)
        received: list[GenerationEvent] = []
        events = self._generator.generate(wanted, trace_parent=telemetry.current_context())
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started):
                    await _send_request_id(wanted.correlation_id or event.request_id, context)
                received.append(event)
        return wire.whole_response(received, with_token_ids=request.request.output.token_ids)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        _echo_request_id(context)
        token_ids = await self._generator.tokenize(wire.tokenize_prompt(request), model=request.model)
        return inference_pb2.TokenizeResponse(
            token_ids=token_ids, max_model_len=self._generator.model(request.model).max_model_len
        )

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        _echo_request_id(context)
        text = await self._generator.detokenize(request.token_ids, model=request.model)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """All models fit one page."""
        _echo_request_id(context)
        if request.page_size < 0:
            raise InvalidParameter("page_size", f"must not be negative, got {request.page_size}")
        if request.page_token:
            raise InvalidParameter("page_token", f"{request.page_token!r} did not come from this server")
        return inference_pb2.ListModelsResponse(models=[wire.model(entry) for entry in self._generator.models()])

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        _echo_request_id(context)
        return inference_pb2.GetModelResponse(model=wire.model(self._generator.model(request.name)))

    async def _write(self, message: inference_pb2.GenerateResponse, context: Context) -> None:
        """Wait for a slow client, but not for ever: its tokens pile up meanwhile."""
        try:
            async with asyncio.timeout(self._stalled_client_s):
                await context.write(message)
        except TimeoutError:
            raise failures.stalled_client(self._stalled_client_s) from None


def _wanted(request: inference_pb2.GenerateRequest, context: Context) -> GenerationRequest:
    metadata = _echo_request_id(context)
    return wire.request(request, metadata, deadline_s=context.time_remaining())


def _echo_request_id(context: Context) -> dict[str, str]:
    """The call's text metadata. Its x-request-id goes back with the trailers, errors included."""
    metadata = text_metadata(context)
    if request_id := metadata.get("x-request-id"):
        context.set_trailing_metadata((("x-request-id", request_id),))
    return metadata


async def _send_request_id(request_id: str, context: Context) -> None:
    """The headers of an admitted request; a client's own id may hold what a header cannot."""
    if request_id.isascii() and request_id.isprintable():
        await context.send_initial_metadata((("x-request-id", request_id),))
