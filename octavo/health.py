"""Whether a service is ready, and grpc.health.v1, which says so. Answers at once: never waits on the work itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Readiness:
    """Ready or not, why not, and who waits for a change. Starts as not ready."""

    def __init__(self, *, is_ready: bool = False, reason: str = "starting") -> None:
        self._is_ready = is_ready
        self._reason = "" if is_ready else reason
        self._changed = asyncio.Event()
        self._is_over = False

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def reason(self) -> str:
        """Why it is not ready, for /readyz and people; empty when it is."""
        return self._reason

    def set(self, ready: bool, reason: str = "") -> None:
        """Change the state and wake everybody who waits for it; saying the same again wakes nobody."""
        reason = "" if ready else reason
        if self._is_over or (ready, reason) == (self._is_ready, self._reason):
            return
        self._is_ready, self._reason = ready, reason
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self, reason: str) -> None:
        """Not ready, and never again: the process is about to end, whatever else becomes of it."""
        self.set(False, reason)
        self._is_over = True

    async def changed(self) -> None:
        """Return when `set` has next made a difference."""
        await self._changed.wait()

    async def ready(self) -> None:
        """Return as soon as the service is ready."""
        while not self._is_ready:
            await self.changed()


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its stubs have no types
    """Reports one readiness under "" and under each name."""

    def __init__(self, readiness: Readiness, names: Sequence[str]) -> None:
        self._readiness = readiness
        self._names = {"", *names}

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            known = ", ".join(sorted(name for name in self._names if name))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here; there are {known}")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:
        each = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in self._names}
        return health_pb2.HealthListResponse(statuses=each)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last: int | None = None
        while True:
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if status == self._status(request.service):  # it may have changed while the answer was written
                await self._readiness.changed()

    def _status(self, name: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        if name not in self._names:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._readiness.is_ready:
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING
