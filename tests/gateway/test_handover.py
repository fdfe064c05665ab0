"""A gateway process takes both ports over from another while clients call: no call fails. Slow: 15 s of renewals."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from octavo.cli import ports, readyz
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.scheduler.v1.scheduler_pb2 import SessionRequest
from tests.e2e.stack import free_port
from tests.fakes.scheduler import FakeScheduler
from tests.gateway import tiny_model
from tests.gateway.stack import running_scheduler, scheduler_address

LIMIT_S = 120  # starting a process takes long on a busy machine
PAUSE_S = 0.02  # between calls


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model.write(tmp_path, tiny_model.byte_level())
    (tmp_path / "model.safetensors").touch()
    return tmp_path


@asynccontextmanager
async def gateway(model: Path, http_port: int, grpc_port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that shares its ports; it listens, which a second one does when it is ready."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", f"--model={model}", f"--scheduler-addr={scheduler_address(model)}"),
        *(f"--port={http_port}", f"--grpc-port={grpc_port}", "--reuse-port", "--log-level=warning"),
        env=environ,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            while not ports.listens(process.pid, http_port):  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class SchedulerOfSeveral(FakeScheduler):
    """The fake one is for one gateway: each gets its own."""

    async def Session(self, requests: AsyncIterator[SessionRequest], context: Any) -> None:
        await FakeScheduler().Session(requests, context)


class Callers:
    """Call both protocols again and again, on kept connections and on new ones; the first failure ends the test."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self.num_calls = {"kept": 0, "new": 0, "grpc": 0}
        self.is_over = False
        self._url = f"http://127.0.0.1:{http_port}/v1/completions"
        self._target = f"127.0.0.1:{grpc_port}"

    async def kept_connection(self) -> None:
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            while not self.is_over:
                await self._post(client, "kept")

    async def new_connections(self) -> None:
        while not self.is_over:
            async with httpx.AsyncClient(timeout=LIMIT_S) as client:
                await self._post(client, "new")

    async def grpc_channel(self) -> None:
        async with grpc.aio.insecure_channel(self._target) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            asked = inference_pb2.GenerateRequest(text="ab", stopping={"max_tokens": 2})
            request = inference_pb2.GenerateOnceRequest(request=asked)
            while not self.is_over:
                await stub.GenerateOnce(request)
                self.num_calls["grpc"] += 1
                await asyncio.sleep(PAUSE_S)

    async def _post(self, client: httpx.AsyncClient, kind: str) -> None:
        answer = await client.post(self._url, json={"prompt": "ab", "max_tokens": 2})
        answer.raise_for_status()
        self.num_calls[kind] += 1
        await asyncio.sleep(PAUSE_S)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_no_call_fails_while_one_gateway_takes_over_from_another(model: Path):
    http_port, grpc_port = free_port(), free_port()
    async with (
        running_scheduler(SchedulerOfSeveral(), model),
        gateway(model, http_port, grpc_port) as first,
        asyncio.TaskGroup() as tasks,
    ):
        while await readyz.missing("127.0.0.1", http_port) is not None:  # noqa: ASYNC110 - it gives no event
            await asyncio.sleep(0.05)
        callers = Callers(http_port, grpc_port)
        calls = (callers.kept_connection, callers.new_connections, callers.grpc_channel)
        calling = [tasks.create_task(call()) for call in calls]
        async with gateway(model, http_port, grpc_port):
            first.send_signal(signal.SIGTERM)
            assert await first.wait() == 0
            before = dict(callers.num_calls)
            await asyncio.sleep(1)
            assert all(callers.num_calls[kind] > num > 0 for kind, num in before.items())
            callers.is_over = True
            await asyncio.wait(calling)  # each ends its last call before the gateway is gone


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_without_a_successor_a_gateway_that_may_share_drains_as_any_other(model: Path):
    async with running_scheduler(SchedulerOfSeveral(), model), gateway(model, free_port(), free_port()) as only:
        only.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(only.wait(), LIMIT_S) == 0
