"""A scheduler and a KV cache service in this process, on Unix sockets; workers and gateways are fakes that dial."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from kvcache_service.core.identities import Identities
from kvcache_service.core.pools import Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants
from kvcache_service.metadata_store import MetadataStore
from kvcache_service.servicer import SERVICE_NAME as KVCACHE_NAME
from kvcache_service.servicer import STATUSES as KVCACHE_STATUSES
from kvcache_service.servicer import KVCacheServicer
from kvcache_service.watch import Watches
from octavo import client, server
from octavo.kvcache.v1.kvcache_pb2_grpc import add_KVCacheServiceServicer_to_server
from octavo.scheduler.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from octavo.worker.v1.worker_pb2_grpc import add_WorkerLinkServiceServicer_to_server
from scheduler_service import engine, kvcache_client
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.engine import Engine
from scheduler_service.failures import STATUSES
from scheduler_service.metrics import Metrics
from scheduler_service.reports import Reporter
from scheduler_service.servicer import SERVICE_NAMES, SchedulerServicer, WorkerLinkServicer
from scheduler_service.worker_metrics import WorkersCollector
from tests.fakes.gateway import FakeGateway
from tests.fakes.worker import FakeWorker

NO_REDIS = "redis://127.0.0.1:1/0"  # nobody listens there: steps go on without


class Stack:
    """What a test starts, stops and dials."""

    def __init__(self, folder: Path, exits: AsyncExitStack) -> None:
        self.kvcache_addr = f"unix:{folder}/kv.sock"
        self.kvcache_dialled = self.kvcache_addr  # by the scheduler
        self.scheduler_addr = f"unix:{folder}/sched.sock"
        self.pools = Pools(caching=True)
        self.registry = CollectorRegistry()
        self.engine: Engine
        self._exits = exits
        self._kvcache = AsyncExitStack()
        self._scheduler = AsyncExitStack()
        self._kvcache_incarnation = 0
        self._tasks: list[asyncio.Task[Any]] = []

    async def start_kvcache(self) -> None:
        """A new process, as far as anybody can tell."""
        self._kvcache_incarnation += 1
        self.pools = Pools(caching=True)
        store = await self._kvcache.enter_async_context(
            MetadataStore.connect(NO_REDIS, self.pools, kvcache_incarnation=self._kvcache_incarnation)
        )
        servicer = KVCacheServicer(
            self.pools,
            store,
            incarnation=self._kvcache_incarnation,
            identities=Identities(Tenants(b"k" * 32), PublicPrefixes()),
            watches=Watches(self.pools, incarnation=self._kvcache_incarnation),
        )
        await self._kvcache.enter_async_context(
            server.started(
                self.kvcache_addr,
                partial(add_KVCacheServiceServicer_to_server, servicer),
                KVCACHE_STATUSES,
                service_names=[KVCACHE_NAME],
            )
        )

    async def stop_kvcache(self) -> None:
        await self._kvcache.aclose()

    async def start_scheduler(self, limits: Limits | None = None, policy: Policy = Policy.FCFS) -> None:
        kvcache = await self._scheduler.enter_async_context(kvcache_client.connected(self.kvcache_dialled))
        self.registry = CollectorRegistry()
        running = await self._scheduler.enter_async_context(
            engine.running(kvcache, Reporter(Metrics(self.registry)), limits=limits or Limits(), policy=policy)
        )
        self.registry.register(WorkersCollector(running.workers))
        self.engine = running

        def register(grpc_server: grpc.aio.Server) -> None:
            add_SchedulerServiceServicer_to_server(SchedulerServicer(running), grpc_server)
            add_WorkerLinkServiceServicer_to_server(WorkerLinkServicer(running), grpc_server)

        await self._scheduler.enter_async_context(
            server.started(self.scheduler_addr, register, STATUSES, service_names=SERVICE_NAMES)
        )

    async def stop_scheduler(self) -> None:
        await self._scheduler.aclose()

    async def ready_gateway(self) -> FakeGateway:
        """A gateway that has heard that requests are served."""
        gateway = FakeGateway()
        await self.dial(gateway)
        await gateway.until(lambda: gateway.state.ready)
        return gateway

    def channel(self) -> grpc.aio.Channel:
        return client.channel(self.scheduler_addr)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what happens inside."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - nobody tells a test
                await asyncio.sleep(0.01)

    async def idle(self) -> None:
        """Return when nothing is in flight and every block is back."""
        await self.until(lambda: not self.num_held_blocks and not self._is_in_flight())

    def _is_in_flight(self) -> bool:
        return any(loop.core.num_steps_in_flight for loop in self.engine.workers.loops)

    async def received(self, worker: FakeWorker, kind: str) -> None:
        """Return when a worker has got a message of this kind."""
        await self.until(lambda: any(message.WhichOneof("message") == kind for message in worker.received))

    @property
    def num_held_blocks(self) -> int:
        return sum(pool.manager.figures.num_held for pool in self.pools)

    async def dial(self, peer: FakeWorker | FakeGateway) -> "asyncio.Task[Any]":
        """A stream of its own; cancel the task to lose it."""
        channel = await self._exits.enter_async_context(client.channel(self.scheduler_addr))
        task = asyncio.create_task(peer.run(channel))
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._scheduler.aclose()
        await self._kvcache.aclose()


@asynccontextmanager
async def started(
    folder: Path, *, limits: Limits | None = None, policy: Policy = Policy.FCFS, has_kvcache: bool = True
) -> AsyncIterator[Stack]:
    """Both services, and nobody attached."""
    async with AsyncExitStack() as exits:
        stack = Stack(folder, exits)
        try:
            if has_kvcache:
                await stack.start_kvcache()
            await stack.start_scheduler(limits, policy)
            yield stack
        finally:
            await stack.close()
