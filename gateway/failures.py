"""How the gateway's errors look to clients: the one table, used by gRPC and HTTP."""

import grpc

from gateway.core import limits
from gateway.core.submission import SchedulerFailure
from octavo.errors import Failed, Failure, StatusTable

RETRY_AFTER_S = 1.0  # for refusals that pass by themselves, when nobody knows better

STATUSES: StatusTable = {
    limits.InvalidParameter: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER"),
    limits.UnsupportedParameter: (grpc.StatusCode.INVALID_ARGUMENT, "UNSUPPORTED_PARAMETER"),
    limits.UnknownModel: (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    limits.ContextLengthExceeded: (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
    limits.DuplicateRequest: (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"),
}

# What the scheduler may answer; a reason that is not here is a bug of one of the two.
_SCHEDULER_CODES: dict[str, grpc.StatusCode] = {
    "INVALID_PARAMETER": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_PARAMETER": grpc.StatusCode.INVALID_ARGUMENT,
    "CONTEXT_LENGTH_EXCEEDED": grpc.StatusCode.INVALID_ARGUMENT,
    "KV_CAPACITY_EXCEEDED": grpc.StatusCode.INVALID_ARGUMENT,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TENANT_QUOTA": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "MODEL_LOADING": grpc.StatusCode.UNAVAILABLE,
    "SERVER_DRAINING": grpc.StatusCode.UNAVAILABLE,
    "NO_WORKER": grpc.StatusCode.UNAVAILABLE,
    "TOKENIZER_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "SCHEDULER_UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "DEADLINE_UNREACHABLE": grpc.StatusCode.DEADLINE_EXCEEDED,
    "NO_PROGRESS": grpc.StatusCode.UNAVAILABLE,
    "POISONED": grpc.StatusCode.INTERNAL,
}


def from_scheduler(failure: SchedulerFailure) -> Failed:
    """The error that a client sees when the scheduler refuses or ends its request."""
    code = _SCHEDULER_CODES.get(failure.reason, grpc.StatusCode.INTERNAL)
    passes_by_itself = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    return Failed(
        Failure(
            code=code,
            reason=failure.reason,
            message=failure.message,
            metadata=failure.metadata,
            retry_after_s=RETRY_AFTER_S
            if failure.retry_after_s is None and passes_by_itself
            else failure.retry_after_s,
            quota_subject=failure.quota_subject,
        )
    )


def loading(why: str) -> Failed:
    """No worker has shown the model yet."""
    return _unavailable("MODEL_LOADING", f"the model is not ready to serve yet: {why}")


def draining() -> Failed:
    """The process finishes what it has and takes nothing new."""
    return _unavailable("SERVER_DRAINING", "this server is shutting down and takes no new requests; try another")


def too_many(limit: int) -> Failed:
    """The gateway itself is full."""
    return Failed(
        Failure(
            code=grpc.StatusCode.RESOURCE_EXHAUSTED,
            reason="QUEUE_FULL",
            message=f"{limit} requests are open here, which is the most this gateway takes",
            metadata={"max_concurrent_requests": str(limit)},
            retry_after_s=RETRY_AFTER_S,
            quota_subject="requests",
        )
    )


def deadline_exceeded(waited_s: float) -> Failed:
    """The client's time is over."""
    return Failed(
        Failure(
            code=grpc.StatusCode.DEADLINE_EXCEEDED,
            reason="DEADLINE_EXCEEDED",
            message=f"the deadline passed after {waited_s:.3f} s",
            metadata={"waited_s": f"{waited_s:.3f}"},
        )
    )


def stalled_client(limit_s: float) -> Failed:
    """The client does not read what it asked for."""
    return Failed(
        Failure(
            code=grpc.StatusCode.CANCELLED,
            reason="CLIENT_STALLED",
            message=f"the client accepted nothing for {limit_s:g} s",
            metadata={"stalled_client_s": f"{limit_s:g}"},
        )
    )


def _unavailable(reason: str, message: str) -> Failed:
    return Failed(
        Failure(code=grpc.StatusCode.UNAVAILABLE, reason=reason, message=message, retry_after_s=RETRY_AFTER_S)
    )
