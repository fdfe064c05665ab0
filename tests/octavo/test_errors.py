"""The error model: domain exceptions to google.rpc details and back, and to HTTP."""

import grpc
import pytest
from google.rpc import error_details_pb2

from octavo import errors
from octavo.errors import Failure


class UnknownRequest(Exception):
    pass


class QueueFull(Exception):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.metadata = {"limit": "8"}


class TenantQueueFull(QueueFull):
    pass


STATUSES: errors.StatusTable = {
    UnknownRequest: (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST"),
    QueueFull: (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
}


def a_failure(code: grpc.StatusCode = grpc.StatusCode.INTERNAL, reason: str = "R") -> Failure:
    return Failure(code=code, reason=reason, message="m")


def test_a_listed_exception_becomes_a_failure_with_its_own_words():
    failure = errors.from_exception(UnknownRequest("request 7 holds no blocks"), STATUSES)
    assert failure == Failure(
        code=grpc.StatusCode.NOT_FOUND, reason="UNKNOWN_REQUEST", message="request 7 holds no blocks"
    )


def test_an_exception_brings_its_numbers_and_its_time_and_a_subclass_is_listed_by_its_base():
    failure = errors.from_exception(TenantQueueFull("full", retry_after_s=0.5), STATUSES)
    assert failure is not None
    assert (failure.reason, failure.metadata, failure.retry_after_s) == ("QUEUE_FULL", {"limit": "8"}, 0.5)


def test_an_exception_that_nobody_listed_is_a_bug():
    assert errors.from_exception(KeyError("x"), STATUSES) is None


def test_a_failure_survives_the_wire():
    failure = Failure(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="INVALID_PARAMETER",
        message="top_p must be in (0, 1]",
        metadata={"top_p": "2"},
        retry_after_s=1.25,
        field="sampling.top_p",
        quota_subject="tenant:acme",
    )
    assert errors.from_status(errors.to_status(failure, "octavo.inference.v1.InferenceService")) == failure


def test_there_is_exactly_one_error_info_and_it_names_the_domain():
    status = errors.to_status(a_failure(), "octavo.kvcache.v1.KVCacheService")
    (detail,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert (info.reason, info.domain) == ("R", "octavo.kvcache.v1.KVCacheService")


def test_too_much_of_something_is_a_quota_failure_with_the_message():
    failure = Failure(
        code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", message="9 wait", quota_subject="requests"
    )
    quota = error_details_pb2.QuotaFailure()
    assert any(detail.Unpack(quota) for detail in errors.to_status(failure, "d").details)
    assert [(violation.subject, violation.description) for violation in quota.violations] == [("requests", "9 wait")]


def test_an_internal_error_names_the_request_and_nothing_else():
    status = errors.to_status(errors.internal("req-1"), "d")
    info = error_details_pb2.RequestInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert info.request_id == "req-1"


def test_the_pushback_trailer_is_whole_milliseconds_rounded_up():
    failure = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="R", message="m", retry_after_s=0.0151)
    assert dict(errors.to_trailers(failure, "d"))["grpc-retry-pushback-ms"] == "16"


def test_a_peer_without_rich_errors_still_gives_a_failure():
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "connection refused", None)
    assert errors.from_rpc_error(error) == Failure(
        code=grpc.StatusCode.UNAVAILABLE, reason="PEER_ERROR", message="connection refused"
    )


def test_garbage_in_the_details_is_ignored():
    trailers = grpc.aio.Metadata((errors.DETAILS_KEY, b"\xff\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), trailers, "m", None)
    assert errors.from_rpc_error(error).reason == "PEER_ERROR"


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", (404, "invalid_request_error", "model_not_found")),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER", (400, "invalid_request_error", "invalid_parameter")),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", (429, "rate_limit_error", "rate_limit_exceeded")),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "SOMETHING_NEW", (429, "rate_limit_error", "rate_limit_exceeded")),
        (grpc.StatusCode.UNAVAILABLE, "NO_WORKER", (503, "server_error", "no_worker")),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE", (504, "timeout", None)),
        (grpc.StatusCode.UNAUTHENTICATED, "INVALID_API_KEY", (401, "authentication_error", "invalid_api_key")),
        (grpc.StatusCode.PERMISSION_DENIED, "INVALID_API_KEY", (403, "authentication_error", "invalid_api_key")),
        (grpc.StatusCode.INTERNAL, "INTERNAL", (500, "server_error", None)),
    ],
)  # fmt: skip
def test_every_failure_has_an_http_form(code: grpc.StatusCode, reason: str, expected: tuple[int, str, str | None]):
    form = errors.http_form(a_failure(code, reason))
    assert (form.status, form.type, form.code) == expected


def test_no_status_code_is_without_an_http_form():
    assert all(errors.http_form(a_failure(code)).status >= 200 for code in grpc.StatusCode)


def test_retry_after_is_whole_seconds_and_at_least_one():
    failure = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="R", message="m", retry_after_s=0.2)
    assert errors.retry_headers(failure) == {"Retry-After": "1", "retry-after-ms": "200"}
    assert errors.retry_headers(a_failure()) == {}
