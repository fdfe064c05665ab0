"""The process: --help without torch, a ready line with its phases, Describe, a trace of the start, an orderly end."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc

from octavo.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes import scheduler_link_server
from tests.gpu_worker.test_scheduler_link import first_step, next_step, result_of


async def started(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpu_worker", *arguments, env={**os.environ, **environ}, stderr=asyncio.subprocess.PIPE
    )


async def lines_of(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    return [json.loads(line) for line in stderr.decode().splitlines() if line.startswith("{")]


async def test_it_serves_and_leaves(gqa_folder: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker.sock"
    async with scheduler_link_server.listening() as fake:
        process = await started(
            *("--model", str(gqa_folder), "--scheduler-addr", fake.address, "--listen-addr", address),
            *("--metrics-port", "0", "--num-blocks", "64", "--dtype", "float32", "--worker-id", "w7"),
        )
        stream = await asyncio.wait_for(fake.streams.get(), 30)
        stream.send(step=first_step())
        stream.send(step=next_step(2))
        async with grpc.aio.insecure_channel(address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            about = await stub.Describe(worker_pb2.DescribeRequest(), timeout=5)
        assert [(await result_of(stream)).seq for _ in range(2)] == [1, 2]
        process.send_signal(signal.SIGTERM)
        lines = await lines_of(process)
    assert process.returncode == 0
    assert (about.worker_id, about.incarnation) == ("w7", stream.hello.incarnation)
    assert (about.device, about.dtype, about.attention_backend) == ("cpu", "float32", "torch_batched")
    assert about.kv_cache_bytes == 64 * 3 * 2 * 2 * 16 * 32 * 4
    assert set(about.startup_s) == {"import", "find_model", "load_weights", "allocate_kv", "warmup"}
    (loaded,) = [line for line in lines if line["event"] == "worker_loaded"]
    assert loaded["total_s"] >= loaded["load_weights"] > 0
    assert stream.ended.is_set()


async def test_a_second_signal_ends_it_although_the_scheduler_does_not_let_it_go(
    gqa_folder: Path, tmp_path: Path
) -> None:
    async with scheduler_link_server.listening() as fake:
        process = await started(
            *("--model", str(gqa_folder), "--scheduler-addr", fake.address, "--metrics-port", "0"),
            *("--listen-addr", f"unix:{tmp_path}/worker.sock", "--num-blocks", "64", "--dtype", "float32"),
        )
        fake.releases = False
        stream = await asyncio.wait_for(fake.streams.get(), 30)
        await asyncio.wait_for(stream.heartbeats.get(), 10)  # it has read the welcome by then; else it would just leave
        process.send_signal(signal.SIGTERM)
        while not (await asyncio.wait_for(stream.heartbeats.get(), 10)).draining:
            pass
        process.send_signal(signal.SIGTERM)
        assert "shutdown_forced" in [line["event"] for line in await lines_of(process)]
    assert process.returncode == 1


async def test_a_signal_while_it_loads_ends_it(gqa_folder: Path, tmp_path: Path) -> None:
    process = await started(
        *("--model", str(gqa_folder), "--listen-addr", f"unix:{tmp_path}/w.sock", "--metrics-port", "0"),
        *("--scheduler-addr", f"unix:{tmp_path}/none.sock"),
    )
    assert process.stderr is not None
    while b"grpc_listening" not in await asyncio.wait_for(process.stderr.readline(), 30):
        pass
    process.send_signal(signal.SIGTERM)
    assert "worker_loaded" not in [line["event"] for line in await lines_of(process)]
    assert process.returncode == 0


async def test_a_model_that_does_not_fit_ends_it_with_what_to_do(gqa_folder: Path, tmp_path: Path) -> None:
    process = await started(
        *("--model", str(gqa_folder), "--listen-addr", f"unix:{tmp_path}/w.sock", "--metrics-port", "0"),
        *("--memory-utilization", "0.000001"),
    )
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert b"gpu_worker cannot start: K/V of one sequence of max_model_len 512 needs" in stderr
    assert b"Traceback" not in stderr


async def test_help_does_not_wait_for_torch() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "importtime", "-m", "gpu_worker", "--help",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stdout, imports = await asyncio.wait_for(process.communicate(), 30)
    assert b"--memory-utilization" in stdout
    assert b"torch" not in imports
