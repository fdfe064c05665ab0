"""How the scheduler's errors look to gateways and workers: the one table, and those that need more than a row."""

from collections.abc import Sequence

import grpc

from octavo.columns import Malformed
from octavo.errors import Failed, Failure, StatusTable
from octavo.message_count import MessageLost
from scheduler_service.core.progress import WAITS_FOR
from scheduler_service.core.rejection import (
    ContextLengthExceeded,
    DeadlineUnreachable,
    InvalidParameter,
    KVCapacityExceeded,
    QueueFull,
    TenantQueueFull,
)
from scheduler_service.core.request import MAX_FAULTS
from scheduler_service.worker_hello import Hello

RETRY_AFTER_S = 5.0  # for what passes when another process has come

STATUSES: StatusTable = {
    ContextLengthExceeded: (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
    KVCapacityExceeded: (grpc.StatusCode.INVALID_ARGUMENT, "KV_CAPACITY_EXCEEDED"),
    InvalidParameter: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER"),
    QueueFull: (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    TenantQueueFull: (grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_QUOTA"),
    DeadlineUnreachable: (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE"),
    MessageLost: (grpc.StatusCode.ABORTED, "MESSAGE_LOST"),
    Malformed: (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED"),
}


def draining() -> Failure:
    """The process finishes what it has and takes nothing new."""
    return Failure(
        code=grpc.StatusCode.UNAVAILABLE,
        reason="SERVER_DRAINING",
        message="this scheduler is shutting down and takes nothing new; try again",
        retry_after_s=RETRY_AFTER_S,
    )


def tokenizer_mismatch(message: str) -> Failure:
    """The gateway speaks other token ids than the workers."""
    return Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="TOKENIZER_MISMATCH", message=message)


def ended(
    reason: str, *, waited_s: float, num_output_tokens: int, was_admitted: bool, waits_for: str = "turn"
) -> Failure:
    """A request that was taken and cannot be finished; `reason` is what the core noted."""
    figures = {"elapsed_s": f"{waited_s:.1f}", "output_tokens": str(num_output_tokens)}
    match reason:
        case "DEADLINE_EXCEEDED":
            state = "while it ran" if was_admitted else "while it waited"
            message = f"its deadline passed {state}, after {waited_s:.1f} s and {num_output_tokens} tokens"
            return Failure(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason=reason, message=message, metadata=figures)
        case "NO_WORKER":
            return Failure(
                code=grpc.StatusCode.UNAVAILABLE,
                reason=reason,
                message=f"no worker came within no_worker_timeout_s, {waited_s:.1f} s after it was sent; "
                "try again when one is back",
                metadata=figures,
                retry_after_s=RETRY_AFTER_S,
            )
        case "NO_PROGRESS":
            return Failure(
                code=grpc.StatusCode.UNAVAILABLE,
                reason=reason,
                message=f"it waited {waited_s:.1f} s for {WAITS_FOR[waits_for]}, and nothing moved; try again later",
                metadata={**figures, "waits_for": waits_for},
                retry_after_s=RETRY_AFTER_S,
            )
        case "POISONED":
            return Failure(
                code=grpc.StatusCode.INTERNAL,
                reason=reason,
                message=f"it was in {MAX_FAULTS} failed steps or worker deaths in a row; it will not be tried again",
                metadata={"faults": str(MAX_FAULTS)},
            )
        case _:
            raise AssertionError(f"a request failed for an unknown reason {reason!r}")


def stale_session(hello: Hello, known_session: int) -> Failed:
    """A worker's stream from before the one it has."""
    return Failed(
        Failure(
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason="STALE_SESSION",
            message=f"worker {hello.worker_id} is in session {known_session}, its hello says {hello.session}",
            metadata={"session": str(hello.session), "known_session": str(known_session)},
        )
    )


def unknown_worker(worker_id: str, known: Sequence[str]) -> Failed:
    """An operator means a worker that is not here."""
    return Failed(
        Failure(
            code=grpc.StatusCode.NOT_FOUND,
            reason="UNKNOWN_WORKER",
            message=f"no worker {worker_id!r} is attached; attached are {', '.join(sorted(known)) or 'none'}",
            metadata={"worker_id": worker_id},
        )
    )


def message_lost(hello: Hello, what: str) -> Failed:
    """Something on a worker's stream never came; on the next stream it is sent again."""
    return Failed(
        Failure(
            code=grpc.StatusCode.ABORTED,
            reason="MESSAGE_LOST",
            message=f"{what} of worker {hello.worker_id}; the stream is not to be trusted any more, dial again",
            metadata={"session": str(hello.session)},
        )
    )


def fingerprint_mismatch(hello: Hello, attached: Hello, field: str) -> Failed:
    """A worker whose blocks must not be mixed with those of one that is here."""
    return Failed(
        Failure(
            code=grpc.StatusCode.FAILED_PRECONDITION,
            reason="FINGERPRINT_MISMATCH",
            message=f"{field} of worker {hello.worker_id} differs from that of worker {attached.worker_id}, which is "
            "attached; workers of one scheduler serve the same model in the same layout",
            metadata={"field": field, "worker_id": attached.worker_id},
        )
    )
