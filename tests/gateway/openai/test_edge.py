"""Paths, request ids and server spans."""

from typing import Any

import grpc
import pytest

from gateway.openai.edge import tidy
from octavo import telemetry
from octavo.errors import Failed, Failure
from octavo.telemetry import SpanContext
from tests.fakes.generator import FakeGenerator
from tests.fakes.otlp_receiver import OtlpReceiver, SpanRecord
from tests.gateway.openai.servers import CHAT, client

PATH = "/v1/chat/completions"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/", "/"), ("//", "/"), ("/v1//models", "/v1/models"), ("/v1/models/", "/v1/models"), ("///a///b//", "/a/b")],
)
def test_slashes_are_tidied(path: str, expected: str):
    assert tidy(path) == expected


@pytest.mark.parametrize("path", ["/v1//chat/completions", "//v1/chat/completions/", PATH])
async def test_every_spelling_of_a_path_works(path: str):
    async with client(FakeGenerator()) as http:
        assert (await http.post(f"http://test{path}", json=CHAT)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/nothing", "/health", PATH])
async def test_the_request_id_comes_back_on_every_answer(path: str):
    async with client(FakeGenerator()) as http:
        assert (await http.get(path, headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
        assert len((await http.get(path)).headers["x-request-id"]) == 32


@pytest.mark.parametrize("given", ["", "with space", "x" * 129, "é"])
async def test_a_request_id_that_is_no_token_is_replaced(given: str):
    async with client(FakeGenerator()) as http:
        response = await http.get("/health", headers=[(b"x-request-id", given.encode())])
    assert len(response.headers["x-request-id"]) == 32


async def traced(
    receiver: OtlpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    *calls: tuple[str, str, dict[str, str]],
    fake: FakeGenerator | None = None,
    body: Any = CHAT,
):
    """The server spans that some calls make, and the parents that the generator saw."""
    fake = fake or FakeGenerator()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    with telemetry.configured("gateway"):
        async with client(fake) as http:
            for method, path, headers in calls:
                await http.request(method, path, json=body, headers=headers)
    return receiver.spans, [parent for _, parent in fake.calls]


async def test_a_request_is_a_server_span_that_continues_the_clients_trace(monkeypatch: pytest.MonkeyPatch):
    with OtlpReceiver() as receiver:
        headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        (span,), (parent,) = await traced(receiver, monkeypatch, ("POST", PATH + "/", headers))
    assert (span.name, span.kind, span.status) == (f"POST {PATH}", "SERVER", "UNSET")
    assert (span.trace_id, span.parent_span_id) == (TRACE_ID, SPAN_ID)
    assert span.attributes["http.request.method"] == "POST"
    assert span.attributes["http.route"] == PATH
    assert span.attributes["http.response.status_code"] == 200
    assert isinstance(parent, SpanContext)
    assert f"{parent.span_id:016x}" == span.span_id


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{SPAN_ID}-01", f"ff-{TRACE_ID}-{SPAN_ID}-01"])
async def test_a_malformed_traceparent_is_ignored(monkeypatch: pytest.MonkeyPatch, header: str):
    with OtlpReceiver() as receiver:
        (span,), _ = await traced(receiver, monkeypatch, ("POST", PATH, {"traceparent": header}))
    assert span.parent_span_id == ""
    assert span.trace_id != TRACE_ID


async def test_errors_and_unknown_paths_are_told_in_the_span_and_probes_make_none(monkeypatch: pytest.MonkeyPatch):
    with OtlpReceiver() as receiver:
        calls: list[tuple[str, str, dict[str, str]]] = [
            ("GET", "/health", {}),
            ("GET", "/metrics", {}),
            ("GET", "/no/such/path", {}),
            ("GET", PATH, {}),
        ]
        spans, _ = await traced(receiver, monkeypatch, *calls)
    seen: dict[object, SpanRecord] = {span.attributes["http.response.status_code"]: span for span in spans}
    assert set(seen) == {404, 405}
    assert seen[404].name == "GET", "a path that anybody may invent is no name"
    assert seen[404].attributes["error.type"] == "404"
    assert seen[404].status == "UNSET", "a client's mistake is not the server's error"


async def test_an_error_in_the_middle_of_a_stream_makes_its_span_an_error(monkeypatch: pytest.MonkeyPatch):
    failure = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="NO_WORKER", message="why")
    with OtlpReceiver() as receiver:
        fake = FakeGenerator(error=Failed(failure), error_at=1)
        body = CHAT | {"stream": True}
        (span,), _ = await traced(receiver, monkeypatch, ("POST", PATH, {}), fake=fake, body=body)
    assert span.attributes["http.response.status_code"] == 200
    assert (span.attributes["error.type"], span.status) == ("no_worker", "ERROR")


async def test_the_callers_trace_is_handed_on_when_tracing_is_off():
    fake = FakeGenerator()
    async with client(fake) as http:
        await http.post(PATH, json=CHAT, headers={"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"})
        await http.post(PATH, json=CHAT)
    first, second = (parent for _, parent in fake.calls)
    assert isinstance(first, SpanContext)
    assert (f"{first.trace_id:032x}", f"{first.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert second is None
