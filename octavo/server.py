"""The gRPC server of a process: listening, health, reflection, error mapping, and an orderly end.

Knows how to be a server; which services it carries is the caller's `register`.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2_grpc

from octavo import listen_address, logs, shutdown, transport
from octavo.errors import StatusTable
from octavo.health import HealthServicer, Readiness
from octavo.interceptors import CallInterceptor
from octavo.listen_address import CannotListen
from octavo.reflection import enable_reflection

__all__ = ["CannotListen", "Exposure", "Readiness", "Running", "run_until_stopped", "serve", "started"]

LEAVE_GRACE_S = 0.5  # at the very end, for long streams to see that the server is going

OPTIONS: tuple[tuple[str, int], ...] = (
    *transport.OPTIONS,
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a silent share of the calls
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # what clients may do; ours ping every 10 s
)

_log = logs.get(__name__)


@dataclass(slots=True, kw_only=True)
class Running:
    """A server that is accepting calls."""

    address: str  # as bound: "127.0.0.1:50053", "unix:/run/octavo/kvcache.sock"
    port: int | None  # None for a Unix socket
    readiness: Readiness
    calls: CallInterceptor
    broken: "asyncio.Future[AssertionError]"  # done when a handler broke an invariant
    server: grpc.aio.Server

    async def stop(self, grace_s: float | None = LEAVE_GRACE_S) -> None:
        """Refuse new calls, cancel those still running after `grace_s`; again is harmless."""
        await self.server.stop(grace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What a server for the outside world may want otherwise than those inside."""

    health_names: tuple[str, ...] = ()  # reported beside the services' names: a model's, say
    reflection: bool = True  # tell clients which methods there are
    options: tuple[tuple[str, int], ...] = ()  # of gRPC; they come before ours
    slow_request_s: float | None = None  # how long the one message of a call may take to arrive; None = for ever


async def serve(
    listen_addr: str,
    register: Callable[[grpc.aio.Server], None],
    statuses: StatusTable,
    *,
    service_names: Sequence[str],
    readiness: Readiness | None = None,
    drain: Callable[[], Awaitable[None]] | None = None,
    drain_timeout_s: float = 30,
) -> None:
    """Serve until SIGTERM or SIGINT, drain, and return; the process then ends with status 0.

    Without `readiness` the service is ready while it listens. Raises CannotListen, which ends the process with a
    message, when the address is taken, and the AssertionError of a handler that broke an invariant.
    """
    async with started(listen_addr, register, statuses, service_names=service_names, readiness=readiness) as running:
        gc.freeze()  # what is loaded by now stays for ever: to look at it again holds every step up for 20 to 60 ms
        await run_until_stopped(running, drain=drain, drain_timeout_s=drain_timeout_s)


@asynccontextmanager
async def started(
    listen_addr: str,
    register: Callable[[grpc.aio.Server], None],
    statuses: StatusTable,
    *,
    service_names: Sequence[str],
    readiness: Readiness | None = None,
    exposure: Exposure = Exposure(),
) -> AsyncIterator[Running]:
    """A running server inside the block ("127.0.0.1:0" binds a free port); leaving the block stops it."""
    listen_address.claim(listen_addr, service_names)
    readiness = readiness or Readiness(is_ready=True)
    broken: asyncio.Future[AssertionError] = asyncio.get_running_loop().create_future()
    calls = CallInterceptor(statuses, broken, slow_request_s=exposure.slow_request_s)
    server = grpc.aio.server(interceptors=[calls], options=tuple((dict(OPTIONS) | dict(exposure.options)).items()))
    register(server)
    health_pb2_grpc.add_HealthServicer_to_server(
        HealthServicer(readiness, [*service_names, *exposure.health_names]), server
    )
    if exposure.reflection:
        enable_reflection(server, service_names)
    port = _bind(server, listen_addr, service_names)
    await server.start()
    address = listen_address.with_port(listen_addr, port)
    running = Running(
        address=address,
        port=None if listen_address.is_unix(listen_addr) else port,
        readiness=readiness,
        calls=calls,
        broken=broken,
        server=server,
    )
    _log.info("grpc_listening", address=address, services=list(service_names))
    try:
        yield running
    finally:
        await running.stop()
        listen_address.give_back(listen_addr)


async def run_until_stopped(
    running: Running,
    *,
    hand_over: Callable[[], Awaitable[None]] | None = None,
    drain: Callable[[], Awaitable[None]] | None = None,
    drain_timeout_s: float = 30,
) -> None:
    """Wait for the first signal; then NOT_SERVING, `hand_over`, `drain`, the calls in flight, and the server's end.

    `hand_over` may take its time, everything after it takes at most `drain_timeout_s`; a second signal ends it at once
    and raises shutdown.Forced. Raises the AssertionError of a handler that broke an invariant: such a process must not
    go on.
    """
    with shutdown.signals() as asked:
        await _first(asked.requested.wait(), running.broken)
        if running.broken.done():
            raise running.broken.result()
        running.readiness.end("draining")
        try:
            if hand_over is not None:
                await asked.finish(hand_over(), None)
            give_up_at = time.monotonic() + drain_timeout_s
            is_drained = await asked.finish(_drained(running, drain), drain_timeout_s)
        except shutdown.Forced:
            await running.stop(0)
            raise
        _log.info(
            "drained" if is_drained else "drain_abandoned",
            num_calls=running.calls.num_calls,
            left_s=round(max(0.0, give_up_at - time.monotonic()), 1),
        )
        await running.stop(LEAVE_GRACE_S if is_drained else 0)


async def _drained(running: Running, drain: Callable[[], Awaitable[None]] | None) -> None:
    if drain is not None:
        await drain()
    await running.calls.idle()


async def _first(*alternatives: Awaitable[object]) -> None:
    """Return when one of `alternatives` is done; coroutines among them are cancelled, futures left alone."""
    waiting = [asyncio.ensure_future(alternative) for alternative in alternatives]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            if isinstance(future, asyncio.Task):
                future.cancel()


def _bind(server: grpc.aio.Server, listen_addr: str, service_names: Sequence[str]) -> int:
    try:
        return server.add_insecure_port(listen_addr)
    except RuntimeError:
        raise CannotListen(listen_addr, "the address is in use or not one of this machine", service_names) from None
