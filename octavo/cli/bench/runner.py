"""Sends the requests of a run: a fixed number at once (closed loop), or at given moments (open loop)."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from octavo.cli.bench.figures import Sample
from octavo.cli.bench.target import Answers

OnDone = Callable[[], None]
Prompts = Sequence[Sequence[int]]


async def closed_loop(
    target: Answers, prompts: Prompts, *, num_tokens: int, concurrency: int, on_done: OnDone
) -> list[Sample]:
    """Always `concurrency` requests open, the next as soon as one ends, until all prompts are answered."""
    waiting = iter(prompts)
    samples: list[Sample] = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(prompts))):
            tasks.create_task(_client(target, waiting, num_tokens, samples, on_done))
    return samples


async def open_loop(
    target: Answers,
    prompts: Prompts,
    *,
    arrival_times: Sequence[float],
    num_tokens: int,
    max_concurrency: int | None,
    on_done: OnDone,
) -> list[Sample]:
    """Each prompt at its moment, whether or not others are answered; beyond `max_concurrency` they wait."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    started_at = asyncio.get_running_loop().time()

    async def send_at(moment: float, prompt: Sequence[int]) -> Sample:
        await asyncio.sleep(started_at + moment - asyncio.get_running_loop().time())
        async with gate:
            sample = await target.generate(prompt, num_tokens)
        on_done()
        return sample

    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(send_at(*pair)) for pair in zip(arrival_times, prompts, strict=True)]
    return [task.result() for task in sent]


async def _client(
    target: Answers, waiting: Iterator[Sequence[int]], num_tokens: int, samples: list[Sample], on_done: OnDone
) -> None:
    for prompt in waiting:
        samples.append(await target.generate(prompt, num_tokens))
        on_done()
