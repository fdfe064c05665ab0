"""The one error model of every service: a failure, its google.rpc form, and its HTTP and OpenAI form.

Knows status codes and reasons; which domain exception means which reason is each service's own table.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
PEER_REASON = "PEER_ERROR"  # the reason of a failure that came without an ErrorInfo

Trailers = tuple[tuple[str, str | bytes], ...]
# Domain exception -> (status code, ErrorInfo reason). A subclass uses the entry of its nearest listed base.
StatusTable = Mapping[type[Exception], tuple[grpc.StatusCode, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a call did not succeed, as every hop and every client may read it."""

    code: grpc.StatusCode
    reason: str  # UPPER_SNAKE, part of the API
    message: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)  # every number in the message
    retry_after_s: float | None = None  # None: say nothing about retrying
    field: str | None = None  # the request field that is wrong
    quota_subject: str | None = None  # what there is too much of: "requests", "tokens", "tenant:" and its name


class Failed(Exception):
    """Raised by a shell (never by a core) to end a call with exactly this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@runtime_checkable
class HasMetadata(Protocol):
    """A domain exception that carries the numbers of its message."""

    metadata: Mapping[str, str]


@runtime_checkable
class HasRetry(Protocol):
    """A domain exception that knows when asking again makes sense."""

    retry_after_s: float | None


@runtime_checkable
class HasField(Protocol):
    """A domain exception about one field of the request."""

    field: str | None


@runtime_checkable
class HasQuota(Protocol):
    """A domain exception about too much of something."""

    quota_subject: str | None


def from_exception(exc: Exception, statuses: StatusTable) -> Failure | None:
    """The failure that `statuses` says `exc` is; None for an exception that nobody listed, which is a bug."""
    if isinstance(exc, Failed):
        return exc.failure
    listed = next((statuses[cls] for cls in type(exc).__mro__ if cls in statuses), None)
    if listed is None:
        return None
    code, reason = listed
    return Failure(
        code=code,
        reason=reason,
        message=str(exc),
        metadata=dict(exc.metadata) if isinstance(exc, HasMetadata) else {},
        retry_after_s=exc.retry_after_s if isinstance(exc, HasRetry) else None,
        field=exc.field if isinstance(exc, HasField) else None,
        quota_subject=exc.quota_subject if isinstance(exc, HasQuota) else None,
    )


def internal(request_id: str) -> Failure:
    """A bug: all that a client may learn of it is the id under which the log has the rest."""
    return Failure(
        code=grpc.StatusCode.INTERNAL,
        reason="INTERNAL",
        message=f"internal error; the server's log has the details under request id {request_id}",
        metadata={"request_id": request_id},
    )


def to_status(failure: Failure, domain: str) -> status_pb2.Status:
    """The google.rpc.Status: one ErrorInfo, then RetryInfo, QuotaFailure, BadRequest, RequestInfo where they apply."""
    (number, _) = failure.code.value
    status = status_pb2.Status(code=number, message=failure.message)
    info = error_details_pb2.ErrorInfo(reason=failure.reason, domain=domain, metadata=failure.metadata)
    status.details.add().Pack(info)
    if failure.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if failure.quota_subject is not None:
        excess = error_details_pb2.QuotaFailure.Violation(subject=failure.quota_subject, description=failure.message)
        status.details.add().Pack(error_details_pb2.QuotaFailure(violations=[excess]))
    if failure.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=failure.field, description=failure.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if "request_id" in failure.metadata:
        status.details.add().Pack(error_details_pb2.RequestInfo(request_id=failure.metadata["request_id"]))
    return status


def to_trailers(failure: Failure, domain: str) -> Trailers:
    """The trailing metadata that carries a failure beside its code and message."""
    trailers: Trailers = ((DETAILS_KEY, to_status(failure, domain).SerializeToString()),)
    if failure.retry_after_s is not None:
        trailers += ((PUSHBACK_KEY, str(math.ceil(failure.retry_after_s * 1000))),)
    return trailers


def from_rpc_error(error: grpc.RpcError) -> Failure:
    """What a failed call said. A peer without rich errors gives the reason PEER_ERROR."""
    assert isinstance(error, grpc.aio.AioRpcError | grpc.Call), f"{error!r} says nothing about its call"
    trailers: Any = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes) and (status := _decoded(value)) is not None:
            return from_status(status)
    return Failure(code=error.code(), reason=PEER_REASON, message=error.details() or error.code().name)


def from_status(status: status_pb2.Status) -> Failure:
    """The inverse of to_status."""
    info = error_details_pb2.ErrorInfo(reason=PEER_REASON)
    retry, quota, bad_request = (
        error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure(), error_details_pb2.BadRequest()
    )  # fmt: skip
    for detail in status.details:
        for message in (info, retry, quota, bad_request):
            detail.Unpack(message)
    violations = bad_request.field_violations
    return Failure(
        code=_CODES[status.code],
        reason=info.reason,
        message=status.message,
        metadata=dict(info.metadata),
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        field=violations[0].field if violations else None,
        quota_subject=quota.violations[0].subject if quota.violations else None,
    )


def _decoded(value: bytes) -> status_pb2.Status | None:
    try:
        status = status_pb2.Status.FromString(value)
    except DecodeError:
        return None
    return status if status.code in _CODES and status.code != code_pb2.OK else None


_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class HttpForm:
    """How a failure looks over HTTP: the status, and `type` and `code` of OpenAI's error object."""

    status: int
    type: str
    code: str | None = None


def http_form(failure: Failure) -> HttpForm:
    """The HTTP form of a failure; the reason decides where it is listed, else the status code."""
    return _HTTP_BY_REASON.get(failure.reason) or _HTTP_BY_CODE[failure.code]


def retry_headers(failure: Failure) -> dict[str, str]:
    """`Retry-After` in whole seconds and `retry-after-ms`, when the failure says when to ask again."""
    if failure.retry_after_s is None:
        return {}
    milliseconds = math.ceil(failure.retry_after_s * 1000)
    return {"Retry-After": str(max(1, math.ceil(failure.retry_after_s))), "retry-after-ms": str(milliseconds)}


_INVALID, _SERVER = "invalid_request_error", "server_error"

_HTTP_BY_REASON: dict[str, HttpForm] = {
    "MODEL_NOT_FOUND": HttpForm(404, _INVALID, "model_not_found"),
    "CONTEXT_LENGTH_EXCEEDED": HttpForm(400, _INVALID, "context_length_exceeded"),
    "KV_CAPACITY_EXCEEDED": HttpForm(400, _INVALID, "kv_capacity_exceeded"),
    "INVALID_PARAMETER": HttpForm(400, _INVALID, "invalid_parameter"),
    "UNSUPPORTED_PARAMETER": HttpForm(400, _INVALID, "unsupported_parameter"),
    "QUEUE_FULL": HttpForm(429, "rate_limit_error", "rate_limit_exceeded"),
    "TENANT_QUOTA": HttpForm(429, "rate_limit_error", "rate_limit_exceeded"),
    "MODEL_LOADING": HttpForm(503, _SERVER, "model_loading"),
    "SERVER_DRAINING": HttpForm(503, _SERVER, "server_draining"),
    "NO_WORKER": HttpForm(503, _SERVER, "no_worker"),
    "NO_PROGRESS": HttpForm(503, _SERVER, "no_progress"),
    "DEADLINE_UNREACHABLE": HttpForm(504, "timeout", "deadline_unreachable"),
    "TOKENIZER_MISMATCH": HttpForm(503, _SERVER, "tokenizer_mismatch"),
}
_HTTP_BY_CODE: dict[grpc.StatusCode, HttpForm] = {
    grpc.StatusCode.OK: HttpForm(200, ""),
    grpc.StatusCode.CANCELLED: HttpForm(499, "cancelled"),
    grpc.StatusCode.UNKNOWN: HttpForm(500, _SERVER),
    grpc.StatusCode.INVALID_ARGUMENT: HttpForm(400, _INVALID),
    grpc.StatusCode.DEADLINE_EXCEEDED: HttpForm(504, "timeout"),
    grpc.StatusCode.NOT_FOUND: HttpForm(404, _INVALID),
    grpc.StatusCode.ALREADY_EXISTS: HttpForm(409, _INVALID),
    grpc.StatusCode.PERMISSION_DENIED: HttpForm(403, "authentication_error", "invalid_api_key"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: HttpForm(429, "rate_limit_error", "rate_limit_exceeded"),
    grpc.StatusCode.FAILED_PRECONDITION: HttpForm(400, _INVALID),
    grpc.StatusCode.ABORTED: HttpForm(409, _SERVER),
    grpc.StatusCode.OUT_OF_RANGE: HttpForm(400, _INVALID),
    grpc.StatusCode.UNIMPLEMENTED: HttpForm(501, _INVALID),
    grpc.StatusCode.INTERNAL: HttpForm(500, _SERVER),
    grpc.StatusCode.UNAVAILABLE: HttpForm(503, _SERVER),
    grpc.StatusCode.DATA_LOSS: HttpForm(500, _SERVER),
    grpc.StatusCode.UNAUTHENTICATED: HttpForm(401, "authentication_error", "invalid_api_key"),
}
