"""An engine that is asked by lines."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.compare.line_target import LineTarget

COMMAND = (sys.executable, "-m", "tests.benchmarks.compare.counting_engine")


@asynccontextmanager
async def engine() -> AsyncIterator[LineTarget]:
    process: Process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    target = LineTarget(process.stdout, process.stdin)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(target.read())
        yield target
        process.stdin.close()
        await process.wait()


async def test_every_request_gets_its_tokens_and_their_moments():
    num_heard = 0

    def hear() -> None:
        nonlocal num_heard
        num_heard += 1

    async with engine() as target:
        samples = await asyncio.gather(*(target.generate([1, 2, 3], length, on_text=hear) for length in (2, 5)))
    assert [sample.num_output_tokens for sample in samples] == [2, 5]
    assert [len(sample.arrived_at) for sample in samples] == [2, 5]
    assert num_heard == 7
    assert all(sample.error is None for sample in samples)
    assert all(sample.sent_at < sample.arrived_at[0] for sample in samples)


async def test_request_of_an_engine_that_ends_has_failed():
    async with engine() as target:
        assert (await target.generate([0], 2)).error == "the engine ended"
