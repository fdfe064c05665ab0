"""Waits until everything that `octavo serve` started can do its work, and notes how long each part took.

Knows health checks (gRPC, HTTP, Redis); never starts or stops anything.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import client
from octavo.cli import ports, readyz
from octavo.cli.serve_plan import GATEWAY, REDIS, Plan

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
    """Return when every part says that it can do its work; every 10 s `say` what is still missing."""
    async with asyncio.TaskGroup() as tasks:
        reporter = tasks.create_task(_report(plan, phases, say))
        parts = {name: _serving(addr) for name, addr in plan.ready_addrs.items()} | {GATEWAY: _answers(plan)}
        if plan.redis_socket is not None:
            parts[REDIS] = _redis(plan.redis_socket)
        await asyncio.wait([tasks.create_task(_noted(name, part, phases)) for name, part in parts.items()])
        reporter.cancel()


async def process(plan: Plan, name: str, pid: int) -> None:
    """Return when process `pid` of the service `name` can do its work. It is the only one, unless it is a gateway."""
    if name == GATEWAY:
        while not ports.listens(pid, plan.http_addr[1]):  # noqa: ASYNC110 - another program's start gives no event
            await asyncio.sleep(TRY_AGAIN_S)
        await _answers(plan)
    elif name == REDIS:
        assert plan.redis_socket is not None, "Redis was started and has no socket"
        await _redis(plan.redis_socket)
    else:
        await _serving(plan.ready_addrs[name])


async def _noted(name: str, part: Awaitable[None], phases: Phases) -> None:
    await part
    phases.done(name)


async def _serving(addr: str) -> None:
    """A gRPC server reports SERVING."""
    async with client.channel(addr, options=_REDIAL) as channel:
        while True:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            try:
                async for answer in watch:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:  # it went away in between: the supervisor reports its end, or it comes back
                await asyncio.sleep(TRY_AGAIN_S)
            finally:
                watch.cancel()


async def _redis(path: Path) -> None:
    while not await _pings(path):  # noqa: ASYNC110 - another program's start gives no event
        await asyncio.sleep(TRY_AGAIN_S)


async def _pings(path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"+PONG")


async def _answers(plan: Plan) -> None:
    """A gateway says that it is ready."""
    while await readyz.missing(*plan.http_addr) is not None:  # noqa: ASYNC110 - as above
        await asyncio.sleep(TRY_AGAIN_S)


async def _report(plan: Plan, phases: Phases, say: Callable[[str, str], None]) -> None:
    """Discrete lines instead of a progress bar, so that they read well in a file too."""
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        missing = [name for name in (*plan.ready_addrs, GATEWAY) if name not in phases.seconds]
        reason = await readyz.missing(*plan.http_addr)
        say(
            "serve",
            f"still starting after {phases.elapsed_s:.0f} s: waiting for {', '.join(missing)}; gateway: {reason}",
        )
