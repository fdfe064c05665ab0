"""WorkerService: what this worker is."""

from dataclasses import dataclass

import grpc

from gpu_worker import wire
from gpu_worker.identity import Identity
from gpu_worker.scheduler_link import SchedulerLink
from octavo.errors import Failed, Failure, StatusTable
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

STATUSES: StatusTable = {}  # nothing a caller can do wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What Describe answers from."""

    identity: Identity
    link: SchedulerLink  # knows the incarnation of the moment
    startup_s: dict[str, float]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers as soon as the model is loaded, attached to a scheduler or not."""

    def __init__(self) -> None:
        self.description: Description | None = None  # None while loading

    async def Describe(self, request: worker_pb2.DescribeRequest, context: object) -> worker_pb2.DescribeResponse:
        if self.description is None:
            raise Failed(
                Failure(
                    code=grpc.StatusCode.UNAVAILABLE,
                    reason="MODEL_LOADING",
                    message="the worker is loading its model",
                    retry_after_s=1.0,
                )
            )
        about = self.description
        return wire.describe_response(about.identity, about.link.incarnation, about.startup_s)
