"""How a process ends: the first signal drains, the second ends it now, and a start can be broken off."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.shutdown import FORCED_STATUS

Process = asyncio.subprocess.Process
PATIENCE_S = 20  # of tests, on a busy machine; the limit of a drain is 60


@asynccontextmanager
async def process(folder: Path, kind: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.octavo.lingering_service", f"unix:{folder}/s.sock", kind),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def said(process: Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    return line.decode().strip()


async def serving(folder: Path) -> None:
    async with grpc.aio.insecure_channel(f"unix:{folder}/s.sock") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=PATIENCE_S)


async def ended(process: Process) -> int:
    return await asyncio.wait_for(process.wait(), PATIENCE_S)


async def test_a_process_with_nothing_to_do_ends_with_zero(tmp_path: Path) -> None:
    async with process(tmp_path, "idle") as idle:
        await serving(tmp_path)
        idle.send_signal(signal.SIGTERM)
        assert [await said(idle), await said(idle)] == ["draining", "closed"]
        assert await ended(idle) == 0


async def test_a_second_signal_ends_it_now_and_it_still_closes_what_it_has(tmp_path: Path) -> None:
    async with process(tmp_path, "busy") as busy:
        await serving(tmp_path)
        busy.send_signal(signal.SIGTERM)
        assert await said(busy) == "draining"
        busy.send_signal(signal.SIGINT)
        assert await said(busy) == "closed"
        assert await ended(busy) == FORCED_STATUS


async def test_a_second_signal_ends_even_what_hangs(tmp_path: Path) -> None:
    async with process(tmp_path, "hanging") as hanging:
        await serving(tmp_path)
        hanging.send_signal(signal.SIGTERM)
        assert await said(hanging) == "draining"
        hanging.send_signal(signal.SIGTERM)
        assert await ended(hanging) == FORCED_STATUS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_breaks_off_the_start(tmp_path: Path, number: signal.Signals) -> None:
    async with process(tmp_path, "starting") as starting:
        assert await said(starting) == "starting"
        starting.send_signal(number)
        assert await ended(starting) == 0
