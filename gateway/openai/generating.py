"""Runs the generations of one HTTP request and gives their events to a sink, for as long as the client is there."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.core.generation import Finished, GenerationEvent, GenerationRequest, Started
from gateway.generator import Generator
from gateway.openai.edge import ClientGone
from gateway.openai.load import Load
from octavo.telemetry import SpanContext

T = TypeVar("T")

# Called with the index of the prompt and what happened; sinks of several prompts are called from several tasks.
Sink = Callable[[int, GenerationEvent], Awaitable[None]]


class Runner:
    """Runs generations and counts them."""

    def __init__(self, generator: Generator, load: Load) -> None:
        self._generator = generator
        self._load = load

    async def run(self, requests: Sequence[GenerationRequest], sink: Sink, *, trace_parent: SpanContext | None) -> None:
        """Until every generation has finished. The first that fails ends the others, and its exception is raised."""
        if len(requests) == 1:
            await self._run_one(requests[0], 0, sink=sink, trace_parent=trace_parent)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for index, request in enumerate(requests):
                    group.create_task(self._run_one(request, index, sink=sink, trace_parent=trace_parent))
        except BaseExceptionGroup as failed:
            raise first_of(failed) from None

    async def _run_one(
        self, request: GenerationRequest, index: int, *, sink: Sink, trace_parent: SpanContext | None
    ) -> None:
        with self._load.one() as ticket:
            async with aclosing(self._generator.generate(request, trace_parent=trace_parent)) as events:
                async for event in events:
                    if isinstance(event, Started):
                        ticket.started()
                    elif isinstance(event, Finished):
                        ticket.finished(event.usage)
                    await sink(index, event)


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`; cancels it and raises ClientGone when the client goes away first."""
    return await beside(work, _until_gone(receive))


async def beside(work: Coroutine[Any, Any, T], watch: Coroutine[Any, Any, None]) -> T:
    """The result of `work`. `watch` runs beside it until then; an exception of either ends both and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch)
            result = await work
            watching.cancel()
        return result
    except BaseExceptionGroup as failed:
        raise first_of(failed) from None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


def first_of(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that a group was raised for; that the client has left explains all others."""
    for exc in failed.exceptions:
        if isinstance(exc, ClientGone):
            return exc
    return failed.exceptions[0]
