"""Every failure has OpenAI's form and the right status."""

from typing import Any

import grpc
import pytest

from gateway.openai import errors
from octavo.errors import Failed, Failure
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import CHAT, client, post

PATH = "/v1/chat/completions"


def failed(code: grpc.StatusCode, reason: str, retry_after_s: float | None = None) -> Failed:
    return Failed(Failure(code=code, reason=reason, message="why", retry_after_s=retry_after_s))


UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TABLE = [
    (failed(EXHAUSTED, "QUEUE_FULL", 0.25), 429, "rate_limit_error", "rate_limit_exceeded"),
    (failed(UNAVAILABLE, "MODEL_LOADING", 2.5), 503, "server_error", "model_loading"),
    (failed(UNAVAILABLE, "SERVER_DRAINING", 1.0), 503, "server_error", "server_draining"),
    (failed(UNAVAILABLE, "NO_WORKER", 1.0), 503, "server_error", "no_worker"),
    (failed(grpc.StatusCode.FAILED_PRECONDITION, "TOKENIZER_MISMATCH"), 503, "server_error", "tokenizer_mismatch"),
    (failed(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"), 504, "timeout", None),
    (failed(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE"), 504, "timeout", "deadline_unreachable"),
    (failed(UNAVAILABLE, "NO_PROGRESS", 5.0), 503, "server_error", "no_progress"),
    (failed(grpc.StatusCode.INTERNAL, "POISONED"), 500, "server_error", None),
    (failed(INVALID, "KV_CAPACITY_EXCEEDED"), 400, "invalid_request_error", "kv_capacity_exceeded"),
]  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind", "code"), TABLE)
async def test_a_failure_before_the_first_byte_keeps_its_status(
    error: Failed, status: int, kind: str, code: str | None, is_stream: bool
):
    response = await post(FakeGenerator(error=error), PATH, CHAT | {"stream": is_stream})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"error": {"message": "why", "type": kind, "param": None, "code": code}}


async def test_a_failure_that_passes_says_when_to_come_back():
    error = failed(EXHAUSTED, "QUEUE_FULL", 0.25)
    headers = (await post(FakeGenerator(error=error), PATH, CHAT)).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "250")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_bug_is_a_500_without_details(is_stream: bool, caplog: pytest.LogCaptureFixture):
    fake = FakeGenerator(error=ZeroDivisionError("/secret/path"))
    response = await post(fake, PATH, CHAT | {"stream": is_stream})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (500, "server_error")
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    assert [record.getMessage() for record in caplog.records] == ["http_request_failed"]


async def test_an_unknown_model_is_404_and_names_those_that_are_served():
    error = (await post(FakeGenerator(), PATH, CHAT | {"model": "gpt-9"})).json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")
    assert "'gpt-9'" in error["message"]
    assert "m, alias" in error["message"]


async def test_a_prompt_that_is_too_long_is_told_in_openais_words():
    response = await post(FakeGenerator(), "/v1/completions", {"prompt": "x" * 70})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 64 tokens. However, ")
    assert "70 tokens" in error["message"]
    assert "rate limit" not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("POST", "/v1/responses", "/v1/chat/completions"),
        ("GET", "/v1/responses/resp_1", "/v1/chat/completions"),
        ("POST", "/v1/messages", "/v1/chat/completions"),
        ("POST", "/v1/embeddings", "/v1/chat/completions"),
        ("POST", "/rerank", "generates text"),
        ("POST", "/chat/completions", "use /v1/chat/completions"),
        ("GET", "/models", "use /v1/models"),
        ("GET", "/nothing/here", "/v1/completions"),
        ("DELETE", "/", "/v1"),
    ],
)
async def test_a_path_that_is_not_here_says_what_is(method: str, path: str, says: str):
    async with client(FakeGenerator()) as http:
        response = await http.request(method, path)
    assert response.status_code in (404, 405)
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert says in error["message"] or response.status_code == 405


async def test_a_wrong_method_is_405_and_names_the_right_one():
    async with client(FakeGenerator()) as http:
        response = await http.get(PATH)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["message"] == f"GET is not allowed on {PATH}; use POST"


def test_an_exception_without_a_table_entry_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture):
    try:
        raise KeyError("x")
    except KeyError as bug:
        problem = errors.problem(bug, "id-1")
    assert (problem.status, problem.code) == (500, None)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
