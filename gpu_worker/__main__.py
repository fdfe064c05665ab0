"""GPU worker: holds the weights and the K/V memory, and runs the steps that the scheduler sends."""

import asyncio
from contextlib import nullcontext
from functools import partial

from gpu_worker.config import WorkerConfig
from gpu_worker.errors import CannotStart
from gpu_worker.servicer import STATUSES, WorkerServicer
from gpu_worker.worker import Worker
from octavo import config, logs, metrics, model_files, server, shutdown, telemetry
from octavo.server import Readiness
from octavo.worker.v1 import worker_pb2_grpc

SERVICE_NAMES = ("octavo.worker.v1.WorkerService",)


async def main() -> None:
    settings = config.load(WorkerConfig, "WORKER")
    logs.configure("worker", level=settings.process.log_level, log_format=settings.process.log_format)
    attributes = {"octavo.model": model_files.name_of(settings.model)}
    with telemetry.configured("worker", instance_id=settings.worker_id, attributes=attributes):
        async with metrics.serve(settings.metrics_port) if settings.metrics_port else nullcontext():
            try:
                await _serve(settings)
            except* (CannotStart, model_files.ModelFilesError) as refused:
                raise SystemExit(f"gpu_worker cannot start: {refused.exceptions[0]}") from None


async def _serve(settings: WorkerConfig) -> None:
    """Health answers at once, Describe when the model is loaded; ends by signal or when the scheduler drains it."""
    readiness, servicer = Readiness(reason="loading the model"), WorkerServicer()
    worker = Worker(settings, readiness, servicer)
    register = partial(worker_pb2_grpc.add_WorkerServiceServicer_to_server, servicer)
    async with (
        server.started(
            settings.listen_addr, register, STATUSES, service_names=SERVICE_NAMES, readiness=readiness
        ) as running,
        asyncio.TaskGroup() as tasks,
    ):
        working = tasks.create_task(worker.run())
        serving = tasks.create_task(
            server.run_until_stopped(running, drain=worker.drain, drain_timeout_s=settings.process.drain_timeout_s)
        )
        await asyncio.wait((working, serving), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        serving.cancel()


if __name__ == "__main__":
    shutdown.run(main)
