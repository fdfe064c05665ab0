"""All processes of Octavo and all links between them, each of which a test can harm. Knows neither load nor faults."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.cli import readyz, redis_server
from octavo.cli.child import Program
from octavo.scheduler.v1 import scheduler_pb2
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.chaos import link
from tests.chaos.link import Link
from tests.chaos.ports import unused_port
from tests.chaos.supervised import Supervised
from tests.chaos.tcp_proxy import HOST

START_LIMIT_S = 90.0
LOOK_AGAIN_S = 0.1
NO_WORKER_TIMEOUT_S = 120  # a worker killed on a busy machine may take a minute to load
SESSION = "/octavo.scheduler.v1.SchedulerService/Session"
WORKER_LINK = "/octavo.worker.v1.WorkerLinkService/Connect"
PLAN_STEP = "/octavo.kvcache.v1.KVCacheService/PlanStep"
HTTP_LINK, GRPC_LINK = "client-gateway-http", "client-gateway-grpc"


class Stack:
    """Processes "gateway", "scheduler", "kvcache", "redis" and "worker-0" on; links named "dials-dialled".

    fp32 numerics and the demo model. `async with Stack(folder) as stack:` starts all and waits until all is ready.
    """

    def __init__(
        self, folder: Path, *, num_workers: int = 2, num_blocks: int = 512, worker_module: str = "gpu_worker"
    ) -> None:
        """`num_blocks` of each worker: few of them mean preemptions."""
        self.folder = folder
        self.num_workers = num_workers
        self.processes: dict[str, Supervised] = {}
        self.links: dict[str, Link] = {}
        self._num_blocks = num_blocks
        self._worker_module = worker_module
        workers = [f"worker-{number}" for number in range(num_workers)]
        names = ("http", "gateway", "scheduler", "kvcache", *workers, "redis", "scheduler-metrics")
        self._ports = {name: unused_port() for name in names}
        self._exits = AsyncExitStack()

    @property
    def http_url(self) -> str:
        """Of the gateway, through the clients' link."""
        return f"http://{HOST}:{self.links[HTTP_LINK].port}"

    @property
    def grpc_addr(self) -> str:
        """Of the gateway, through the clients' link."""
        return f"{HOST}:{self.links[GRPC_LINK].port}"

    @property
    def quiet_http_url(self) -> str:
        """Of the gateway, past all links."""
        return f"http://{HOST}:{self._ports['http']}"

    @property
    def scheduler_addr(self) -> str:
        """Past all links."""
        return self.address("scheduler")

    @property
    def kvcache_addr(self) -> str:
        """Past all links."""
        return self.address("kvcache")

    @property
    def scheduler_metrics_url(self) -> str:
        return f"http://{HOST}:{self._ports['scheduler-metrics']}/metrics"

    def address(self, name: str) -> str:
        """Where a process answers gRPC, past all links; Redis does not."""
        return f"{HOST}:{self._ports[name]}"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            await self._open_links(exits)
            tasks = await exits.enter_async_context(asyncio.TaskGroup())
            for program in self._programs():
                process = Supervised(program, self.folder / f"{program.name}.log")
                self.processes[program.name] = process
                exits.callback(tasks.create_task(process.run()).cancel)
            await self.ready(START_LIMIT_S)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def ready(self, timeout_s: float = 60.0) -> None:
        """Return once every process says that it can do its work; TimeoutError says what is missing."""
        missing: str | None = "everything"
        try:
            async with asyncio.timeout(timeout_s):
                while missing is not None:
                    await asyncio.sleep(LOOK_AGAIN_S)
                    missing = await self._missing()
        except TimeoutError:
            raise TimeoutError(f"not ready after {timeout_s:g} s: {missing}; logs are in {self.folder}") from None

    async def _missing(self) -> str | None:
        """A process that was killed a moment ago may still be counted by its peers: each is asked itself."""
        for name in self.processes:
            if name != "redis" and (status := await _health(self.address(name))) != "SERVING":
                return f"{name} is {status}"
        if reason := await readyz.missing(HOST, self._ports["http"]):
            return reason
        async with grpc.aio.insecure_channel(self.scheduler_addr) as channel:
            try:
                state = await SchedulerServiceStub(channel).GetState(scheduler_pb2.GetStateRequest(), timeout=5)
            except grpc.aio.AioRpcError as error:
                return f"the scheduler does not answer: {error.details()}"
        if len(state.workers) != self.num_workers:
            return f"{len(state.workers)} of {self.num_workers} workers are attached"
        return None

    async def _open_links(self, exits: AsyncExitStack) -> None:
        ports = self._ports
        wanted: list[tuple[str, int, str | None]] = [
            (HTTP_LINK, ports["http"], None),
            (GRPC_LINK, ports["gateway"], None),
            ("gateway-scheduler", ports["scheduler"], SESSION),
            *((f"worker-{i}-scheduler", ports["scheduler"], WORKER_LINK) for i in range(self.num_workers)),
            ("scheduler-kvcache", ports["kvcache"], PLAN_STEP),
            ("kvcache-redis", ports["redis"], None),
        ]
        for name, port, method in wanted:
            self.links[name] = await exits.enter_async_context(link.listening(name, port, method=method))

    def _programs(self) -> list[Program]:
        """In the order of nobody's need: each waits for its peers."""
        return [
            _service(
                *("gateway", "gateway", "--port", self._ports["http"], "--grpc-port", self._ports["gateway"]),
                *("--scheduler-addr", self._dialled("gateway-scheduler"), "--gateway-id", "gateway"),
            ),
            _service(
                *("scheduler", "scheduler_service", "--listen-addr", self.scheduler_addr),
                *("--kvcache-addr", self._dialled("scheduler-kvcache")),
                *("--metrics-port", self._ports["scheduler-metrics"]),
                *("--no-worker-timeout-s", NO_WORKER_TIMEOUT_S),
            ),
            _service(
                *("kvcache", "kvcache_service", "--listen-addr", self.kvcache_addr, "--metrics-port", 0),
                *("--redis-url", f"redis://{self._dialled('kvcache-redis')}/0"),
                *("--namespace-key", "the same after every restart"),
            ),
            *(self._worker(f"worker-{i}") for i in range(self.num_workers)),
            Program(name="redis", command=self._redis_command(), environ=dict(os.environ)),
        ]

    def _worker(self, name: str) -> Program:
        return _service(
            *(name, self._worker_module, "--worker-id", name, "--listen-addr", self.address(name)),
            *("--scheduler-addr", self._dialled(f"{name}-scheduler"), "--metrics-port", 0),
            *("--dtype", "float32", "--num-threads", 1, "--num-blocks", self._num_blocks),
        )

    def _redis_command(self) -> tuple[str, ...]:
        return (
            *(str(redis_server.find()), "--port", str(self._ports["redis"]), "--bind", HOST, "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no"),
        )

    def _dialled(self, name: str) -> str:
        return f"{HOST}:{self.links[name].port}"


def _service(name: str, module: str, *flags: str | int) -> Program:
    command = (sys.executable, "-m", module, *map(str, flags))
    return Program(name=name, command=command, environ=dict(os.environ))


async def _health(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return f"not there: {error.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
