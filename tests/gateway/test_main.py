"""The gateway as a process: both public ports, and an orderly end."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import client, errors
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.scheduler import FakeScheduler
from tests.gateway import tiny_model
from tests.gateway.stack import running_scheduler, scheduler_address


@asynccontextmanager
async def running_gateway(folder: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, int]]:
    """(process, HTTP port, gRPC port), ready to serve the tiny model."""
    http_port, grpc_port = _free_port(), _free_port()
    tiny_model.write(folder, tiny_model.byte_level())
    (folder / "model.safetensors").touch()
    ports = (f"--port={http_port}", f"--grpc-port={grpc_port}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", f"--model={folder}", f"--scheduler-addr={scheduler_address(folder)}",
        "--served-model-name=tiny", *ports, *flags, env=environ, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with client.channel(f"127.0.0.1:{grpc_port}") as channel:
            await serving(channel, "tiny")
        yield process, http_port, grpc_port
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def serving(channel: grpc.aio.Channel, name: str) -> None:
    """Return when the gateway says that it serves `name`."""
    await has_status(channel, name, health_pb2.HealthCheckResponse.SERVING)


async def not_serving(channel: grpc.aio.Channel, name: str) -> None:
    """Return when it says that it does not."""
    await has_status(channel, name, health_pb2.HealthCheckResponse.NOT_SERVING)


async def has_status(channel: grpc.aio.Channel, name: str, status: int) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service=name), wait_for_ready=True, timeout=30
    )
    async for answer in watch:
        if answer.status == status:
            return


async def test_both_protocols_answer_and_sigterm_drains(tmp_path: Path):
    scheduler = FakeScheduler()
    scheduler.step_s = 0.02
    async with running_scheduler(scheduler, tmp_path), running_gateway(tmp_path) as (process, http_port, grpc_port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, httpx.AsyncClient() as http:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            by_http = await http.post(
                f"http://127.0.0.1:{http_port}/v1/completions", json={"prompt": "ab", "max_tokens": 4}
            )
            assert by_http.json()["choices"][0]["text"] == "abab"
            call = stub.Generate(inference_pb2.GenerateRequest(text="ab", stopping={"max_tokens": 40}))
            messages = aiter(call)
            await anext(messages)
            process.send_signal(signal.SIGTERM)
            text = "".join([message.chunk.text async for message in messages])
        assert text == "ab" * 20
        _, said = await asyncio.wait_for(process.communicate(), timeout=10)
        assert process.returncode == 0
    lines = [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
    finished = [line for line in lines if line["event"] == "request_finished"]
    assert [(line["num_prompt_tokens"], line["num_output_tokens"], line["reason"]) for line in finished] == [
        (2, 4, "length"),
        (2, 40, "length"),
    ]
    assert all(line["request_id"] and line["ttft_ms"] > 0 for line in finished)


async def test_a_gateway_that_drains_refuses_what_is_new_and_says_when_to_ask_again(tmp_path: Path):
    scheduler = FakeScheduler()
    scheduler.step_s = 0.02
    async with running_scheduler(scheduler, tmp_path), running_gateway(tmp_path) as (process, http_port, grpc_port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, httpx.AsyncClient() as http:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            messages = aiter(stub.Generate(inference_pb2.GenerateRequest(text="ab", stopping={"max_tokens": 200})))
            await anext(messages)
            process.send_signal(signal.SIGTERM)
            await not_serving(channel, "tiny")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GenerateOnce(inference_pb2.GenerateOnceRequest(request={"text": "ab"}))
            by_http = await http.post(f"http://127.0.0.1:{http_port}/v1/completions", json={"prompt": "ab"})
            assert (await http.get(f"http://127.0.0.1:{http_port}/readyz")).status_code == 503
            assert "".join([message.chunk.text async for message in messages]) == "ab" * 100
        assert await asyncio.wait_for(process.wait(), timeout=20) == 0
    failure = errors.from_rpc_error(refused.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
    assert failure.retry_after_s == 1
    assert (by_http.status_code, by_http.json()["error"]["code"]) == (503, "server_draining")
    assert by_http.headers["retry-after"] == "1"


@pytest.mark.slow
async def test_a_second_signal_ends_what_runs(tmp_path: Path):
    scheduler = FakeScheduler()
    scheduler.step_s = 0.02
    async with running_scheduler(scheduler, tmp_path), running_gateway(tmp_path) as (process, _, grpc_port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            messages = aiter(stub.Generate(inference_pb2.GenerateRequest(text="ab", stopping={"max_tokens": 4000})))
            await anext(messages)
            process.send_signal(signal.SIGTERM)
            await not_serving(channel, "tiny")
            process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in messages:
                    pass
        assert await asyncio.wait_for(process.wait(), timeout=20) == 1


async def test_a_model_that_cannot_be_used_ends_the_process_with_a_message(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", f"--model={tmp_path}", stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), timeout=30)
    assert process.returncode == 1
    assert said.decode().startswith("octavo gateway: the folder")
    assert "Traceback" not in said.decode()


async def test_a_taken_port_ends_the_process_with_a_message(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tiny_model.write(tmp_path, tiny_model.byte_level())
        (tmp_path / "model.safetensors").touch()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", f"--model={tmp_path}", f"--port={port}", f"--grpc-port={_free_port()}",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await asyncio.wait_for(process.communicate(), timeout=30)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said.decode()
    assert "Traceback" not in said.decode()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
