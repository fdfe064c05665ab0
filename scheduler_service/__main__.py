"""Scheduler: owns requests and decides, step by step, who advances."""

from contextlib import nullcontext

import grpc

from octavo import config, logs, server, shutdown, telemetry
from octavo import metrics as exposition
from octavo.scheduler.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from octavo.worker.v1.worker_pb2_grpc import add_WorkerLinkServiceServicer_to_server
from scheduler_service import engine, kvcache_client
from scheduler_service.config import SchedulerConfig
from scheduler_service.failures import STATUSES
from scheduler_service.metrics import Metrics
from scheduler_service.reports import Reporter
from scheduler_service.servicer import SERVICE_NAMES, SchedulerServicer, WorkerLinkServicer
from scheduler_service.worker_metrics import WorkersCollector


async def main() -> None:
    settings = config.load(SchedulerConfig, "SCHEDULER")
    logs.configure("scheduler", level=settings.process.log_level, log_format=settings.process.log_format)
    with telemetry.configured("scheduler"):
        async with (
            exposition.serve(settings.metrics_port) if settings.metrics_port else nullcontext(),
            kvcache_client.connected(settings.kvcache_addr) as kvcache,
            engine.running(
                kvcache,
                Reporter(Metrics(exposition.REGISTRY)),
                limits=settings.limits,
                policy=settings.scheduling.policy,
            ) as running,
        ):
            exposition.REGISTRY.register(WorkersCollector(running.workers))

            def register(grpc_server: grpc.aio.Server) -> None:
                add_SchedulerServiceServicer_to_server(SchedulerServicer(running), grpc_server)
                add_WorkerLinkServiceServicer_to_server(WorkerLinkServicer(running), grpc_server)

            await server.serve(
                settings.listen_addr,
                register,
                STATUSES,
                service_names=SERVICE_NAMES,
                drain=running.hand_over,
                drain_timeout_s=settings.process.drain_timeout_s,
            )


if __name__ == "__main__":
    shutdown.run(main)
