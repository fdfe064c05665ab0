"""The process: on SIGTERM it hands over and is gone, and the next one goes on with everything."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.gateway import FakeGateway
from tests.fakes.worker import FakeWorker
from tests.scheduler_service.stack import Stack
from tests.scheduler_service.test_workers import PROMPT, all_right, three_running

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20  # of tests, on a busy machine; --drain-timeout-s is 30


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A KV cache service, and the address at which the tests start schedulers."""
    async with AsyncExitStack() as exits:
        stack = Stack(tmp_path, exits)
        await stack.start_kvcache()
        yield stack
        await stack.close()


@asynccontextmanager
async def scheduler(stack: Stack) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_service", "--listen-addr", stack.scheduler_addr),
        *("--kvcache-addr", stack.kvcache_addr, "--metrics-port", "0"),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        async with stack.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=PATIENCE_S)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_hands_over_at_once_and_the_next_process_goes_on(stack: Stack) -> None:
    worker, gateway = FakeWorker(), FakeGateway()
    async with scheduler(stack) as process:
        streams = [await stack.dial(worker), await stack.dial(gateway)]
        await gateway.until(lambda: gateway.state.ready)
        await three_running(stack, gateway)
        worker.gate.clear()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*streams)
            assert await process.wait() == 0
    assert gateway.state.draining
    assert not gateway.finished
    worker.gate.set()
    async with scheduler(stack):
        await stack.dial(worker)
        await stack.dial(gateway)
        await gateway.until(lambda: gateway.state.ready)
        for number in range(3):
            await gateway.submit(number, [*PROMPT, number], max_tokens=200, was_submitted=True)
        await all_right(gateway)


async def test_health_says_first_that_it_leaves(stack: Stack) -> None:
    worker = FakeWorker()
    worker.gate.clear()  # its step keeps the process for a moment
    async with scheduler(stack) as process, stack.channel() as channel:
        gateway = await started_request(stack, worker)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert (await asyncio.wait_for(watch.read(), PATIENCE_S)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    assert not gateway.rejected


async def started_request(stack: Stack, worker: FakeWorker) -> FakeGateway:
    """A gateway whose request is in a step that was sent."""
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await stack.received(worker, "step")
    return gateway
