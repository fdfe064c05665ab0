"""A request that kills every worker it is given to ends as POISONED with the third, and its neighbours are exact."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from octavo.errors import from_rpc_error
from octavo.inference.v1 import inference_pb2 as pb
from tests.chaos import invariants
from tests.chaos.poisoned_worker import KILLS_WHEN_COMPUTED, KILLS_WHEN_DECODING
from tests.chaos.stack import Stack
from tests.e2e.stack import Answer, collect, greedy

NUM_NEIGHBOURS = 8
NUM_TOKENS = 60
SHARED = list(range(1000, 1040))  # the beginning of every prompt

pytestmark = pytest.mark.timeout(600)


async def neighbours(stack: Stack, *, begun: asyncio.Event) -> list[Answer]:
    """Eight greedy streams at once; `begun` when each has its first token."""
    firsts = [asyncio.Event() for _ in range(NUM_NEIGHBOURS)]

    async def told() -> None:
        for first in firsts:
            await first.wait()
        begun.set()

    async with grpc.aio.insecure_channel(stack.grpc_addr) as channel, asyncio.TaskGroup() as tasks:
        tasks.create_task(told())
        prompts = [[*SHARED, 2000 + number] for number in range(NUM_NEIGHBOURS)]
        streams = [
            tasks.create_task(collect(channel, greedy(ids, max_tokens=NUM_TOKENS), on_first_token=first.set))
            for ids, first in zip(prompts, firsts, strict=True)
        ]
    return [stream.result() for stream in streams]


async def failure_of(stack: Stack, poison: Sequence[int], *, num_answers: int) -> grpc.aio.AioRpcError:
    """How a marked request ends."""
    request = greedy([*SHARED, *poison, 3000], max_tokens=NUM_TOKENS)
    request.sampling.MergeFrom(pb.SamplingParams(n=num_answers))
    async with grpc.aio.insecure_channel(stack.grpc_addr) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(channel, request)
    return caught.value


@pytest.mark.parametrize(
    ("num_workers", "poison", "num_answers"),
    [
        pytest.param(2, KILLS_WHEN_COMPUTED, 1, marks=pytest.mark.chaos, id="prompt, 2 workers"),
        pytest.param(1, KILLS_WHEN_DECODING, 1, marks=pytest.mark.slow, id="decode, 1 worker"),
        pytest.param(2, KILLS_WHEN_DECODING, 3, marks=pytest.mark.slow, id="decode, 2 workers, n=3"),
    ],
)
async def test_who_kills_three_workers_ends_alone(
    tmp_path: Path, num_workers: int, poison: Sequence[int], num_answers: int
) -> None:
    worker_module = "tests.chaos.poisoned_worker"
    async with Stack(tmp_path, num_workers=num_workers, worker_module=worker_module) as stack:
        undisturbed = await neighbours(stack, begun=asyncio.Event())
        begun = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            disturbed = tasks.create_task(neighbours(stack, begun=begun))
            await begun.wait()
            error = await failure_of(stack, poison, num_answers=num_answers)
        failure = from_rpc_error(error)
        assert (error.code(), failure.reason) == (grpc.StatusCode.INTERNAL, "POISONED"), failure
        told = [(answer.text, answer.token_ids, answer.finish_reason) for answer in disturbed.result()]
        assert told == [(answer.text, answer.token_ids, answer.finish_reason) for answer in undisturbed]
        await stack.ready()
        deaths = sum(stack.processes[f"worker-{number}"].num_starts - 1 for number in range(num_workers))
        assert 3 <= deaths <= 3 * num_answers
        assert await invariants.broken_after_quiet(stack) == []
