"""A gateway on real gRPC, from the public port to the fake scheduler, with a tokenizer made by the tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from gateway import failures, model_profile, scheduler_session, tokenizer
from gateway.config import Limits
from gateway.core.generation import GenerationEvent, GenerationRequest, Stopping, TextChunk, TextPrompt
from gateway.generator import Generator
from gateway.inference_servicer import SERVICE_NAME, InferenceServicer
from gateway.request_metrics import RequestMetrics
from gateway.scheduler_session import SchedulerSession
from gateway.serving import Serving
from octavo import server
from octavo.inference.v1 import inference_pb2_grpc
from octavo.scheduler.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from tests.fakes.scheduler import FakeScheduler
from tests.gateway import tiny_model


@dataclass
class Stack:
    """What tests hold on to."""

    scheduler: FakeScheduler
    generator: Generator
    session: SchedulerSession
    serving: Serving
    registry: CollectorRegistry
    readiness: server.Readiness
    channel: grpc.aio.Channel

    @property
    def stub(self) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(self.channel)


@asynccontextmanager
async def running_stack(
    folder: Path, scheduler: FakeScheduler, *, settings: Limits | None = None, starts_scheduler: bool = True
) -> AsyncIterator[Stack]:
    """Ready to serve, unless `starts_scheduler` is false; then use `running_scheduler`."""
    settings = settings or Limits()
    config_dir = tiny_model.write(folder, tiny_model.byte_level())
    readiness = server.Readiness()
    serving = Serving(
        model_profile.load(config_dir), names=("tiny", "alias"), created_s=time.time(), readiness=readiness
    )
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, model_name="tiny", max_model_len=4096)
    async with (
        _maybe_running(scheduler, folder, starts=starts_scheduler),
        scheduler_session.connected(
            scheduler_address(folder), gateway_id="test", tokenizer_digest=b"digest", on_state=serving.hear
        ) as session,
    ):
        metrics.show_open(lambda: session.num_open)
        with tokenizer.loaded(config_dir) as loaded:
            generator = Generator(
                tokenizer=loaded, session=session, serving=serving, metrics=metrics, settings=settings
            )
            servicer = InferenceServicer(generator, stalled_client_s=settings.stalled_client_s)
            register = partial(inference_pb2_grpc.add_InferenceServiceServicer_to_server, servicer)
            async with (
                server.started(
                    f"unix:{folder}/gateway.sock", register, failures.STATUSES, service_names=[SERVICE_NAME],
                    readiness=readiness,
                    exposure=server.Exposure(
                        options=settings.grpc_options, slow_request_s=settings.slow_request_s
                    ),
                ) as public,
                grpc.aio.insecure_channel(public.address) as channel,
            ):  # fmt: skip
                if starts_scheduler:
                    await readiness.ready()
                yield Stack(scheduler, generator, session, serving, registry, readiness, channel)


@asynccontextmanager
async def running_scheduler(fake: FakeScheduler, folder: Path) -> AsyncIterator[None]:
    """Where the gateway of `folder` looks for it."""
    register = partial(add_SchedulerServiceServicer_to_server, fake)
    async with server.started(scheduler_address(folder), register, {}, service_names=["fake scheduler"]):
        yield


def scheduler_address(folder: Path) -> str:
    return f"unix:{folder}/scheduler.sock"


def asked(text: str = "hello ", max_tokens: int | None = 10, **more: Any) -> GenerationRequest:
    """A request for a text, with any other field."""
    more.setdefault("stopping", Stopping(max_tokens=max_tokens))
    return GenerationRequest(prompt=TextPrompt(text=text), **more)


async def events_of(stack: Stack, request: GenerationRequest) -> list[GenerationEvent]:
    """The whole call."""
    async with aclosing(stack.generator.generate(request)) as events:
        return [event async for event in events]


def chunks_in(events: Sequence[GenerationEvent], index: int = 0) -> list[TextChunk]:
    return [event for event in events if isinstance(event, TextChunk) and event.index == index]


def text_in(events: Sequence[GenerationEvent], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks_in(events, index))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in other tasks."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the fake has no event for every condition
            await asyncio.sleep(0.002)


@asynccontextmanager
async def _maybe_running(scheduler: FakeScheduler, folder: Path, *, starts: bool) -> AsyncIterator[None]:
    if not starts:
        yield
        return
    async with running_scheduler(scheduler, folder):
        yield
