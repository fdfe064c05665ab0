"""Waits until everything that `octavo serve` started can do its work, and notes how long each part took.

Knows health checks (gRPC, HTTP, Redis); never starts or stops anything.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import client
from octavo.cli import readyz
from octavo.cli.serve_plan import REDIS, Plan

TRY_AGAIN_S = 0.05  # an HTTP server and a Redis that are about to listen give no sign of it
REPORT_EVERY_S = 10.0
_REDIAL = [("grpc.max_reconnect_backoff_ms", 200)]


class Phases:
    """Seconds from the start until each part was ready."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self.seconds: dict[str, float] = {}

    def done(self, name: str) -> None:
        self.seconds[name] = self.elapsed_s

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at


async def wait(plan: Plan, phases: Phases, say: Callable[[str, str], None]) -> None:
    """Return when the gateway says that it can answer; every 10 s `say` what is still missing."""
    async with asyncio.TaskGroup() as tasks:
        reporter = tasks.create_task(_report(plan, phases, say))
        others = [tasks.create_task(_service(name, addr, phases)) for name, addr in plan.ready_addrs.items()]
        if plan.redis_socket is not None:
            others.append(tasks.create_task(_redis(plan.redis_socket, phases)))
        await _gateway(plan, phases)
        await asyncio.wait(others)
        reporter.cancel()


async def _service(name: str, addr: str, phases: Phases) -> None:
    async with client.channel(addr, options=_REDIAL) as channel:
        while True:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            try:
                async for answer in watch:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        phases.done(name)
                        return
            except grpc.aio.AioRpcError:  # it went away in between: the supervisor reports its end, or it comes back
                await asyncio.sleep(TRY_AGAIN_S)
            finally:
                watch.cancel()


async def _redis(path: Path, phases: Phases) -> None:
    while not await _pings(path):  # noqa: ASYNC110 - another program's start gives no event
        await asyncio.sleep(TRY_AGAIN_S)
    phases.done(REDIS)


async def _pings(path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"+PONG")


async def _gateway(plan: Plan, phases: Phases) -> None:
    while await readyz.missing(*plan.http_addr) is not None:  # noqa: ASYNC110 - as above
        await asyncio.sleep(TRY_AGAIN_S)
    phases.done("gateway")


async def _report(plan: Plan, phases: Phases, say: Callable[[str, str], None]) -> None:
    """Discrete lines instead of a progress bar, so that they read well in a file too."""
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        missing = [name for name in (*plan.ready_addrs, "gateway") if name not in phases.seconds]
        reason = await readyz.missing(*plan.http_addr)
        say(
            "serve",
            f"still starting after {phases.elapsed_s:.0f} s: waiting for {', '.join(missing)}; gateway: {reason}",
        )
