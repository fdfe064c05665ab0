"""Bodies of every wrong kind, and what is done about fields that nobody knows."""

import logging
from typing import Any

import httpx
import pytest

from gateway.config import GatewayConfig, Limits
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import CHAT, client, post, uvicorn_serving

PATH = "/v1/chat/completions"
MESSAGES = '"messages": [{"role": "user", "content": "hi"}]'


async def refusal(body: Any, settings: GatewayConfig | None = None, path: str = PATH) -> dict[str, Any]:
    fake = FakeGenerator()
    response = await post(fake, path, body, settings)
    assert response.status_code == 400, response.text
    assert not fake.calls
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b"  \n", "the body is empty"),
        (b"{", "not valid JSON: EOF"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"messages": [}', "not valid JSON"),
        (b'{"messages": "\xff\xfe"}', "invalid unicode"),
        (b'{"messages": "\\ud83d"}', "not valid JSON"),
        (b"[" * 5000, "recursion limit"),
        (b"[]", "must be a JSON object, got an array"),
        (b"5", "must be a JSON object, got the number 5"),
        (b"null", "must be a JSON object, got null"),
        (b'"text"', "must be a JSON object, got the string 'text'"),
        (b"\x1f\x8b\x08\x00", "not valid JSON"),
    ],
)
async def test_what_is_no_json_object_is_refused(body: bytes, says: str):
    error = await refusal(body)
    assert says in error["message"]
    assert error["param"] is None


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ('"messages": 5', "messages", "must be an array, got the number 5"),
        ('"messages": null', "messages", "must be an array, got null"),
        ('"messages": []', "messages", "at least one message"),
        ('"messages": ["hi"]', "messages[0]", "must be an object, got the string 'hi'"),
        ('"messages": [{"content": "hi"}]', "messages[0].role", "is required"),
        ('"messages": [{"role": 5}]', "messages[0].role", "must be a string, got the number 5"),
        ('"messages": [{"role": "user", "content": 5}]', "messages[0].content", "must be a text or a list"),
        (f'{MESSAGES}, "temperature": "hot"', "temperature", "must be a number, got the string 'hot'"),
        (f'{MESSAGES}, "temperature": NaN', "temperature", "must be a finite number"),
        (f'{MESSAGES}, "temperature": true', "temperature", "must be a number, got true"),
        (f'{MESSAGES}, "max_tokens": 1.5', "max_tokens", "must be an integer, got the number 1.5"),
        (f'{MESSAGES}, "max_tokens": 99999999999', "max_tokens", "less than or equal to 2147483647"),
        (f'{MESSAGES}, "seed": 99999999999999999999', "seed", "must fit 64 bits"),
        (f'{MESSAGES}, "stream": "yes"', "stream", "must be a boolean, got the string 'yes'"),
        (f'{MESSAGES}, "stop": 5', "stop", "must be a text or a list"),
        (f'{MESSAGES}, "logit_bias": {{"1": "x"}}', "logit_bias.1", "must be a number"),
        (f'{MESSAGES}, "model": 5', "model", "must be a string"),
        (f'{MESSAGES}, "stream_options": []', "stream_options", "must be an object, got an array"),
    ],
)
async def test_a_wrong_type_is_named_with_its_field(fields: str, param: str, says: str):
    error = await refusal(f"{{{fields}}}".encode())
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert says in error["message"]


async def test_a_missing_field_is_named():
    assert (await refusal({}))["message"] == "messages: is required"
    assert (await refusal({}, path="/v1/completions"))["param"] == "prompt"


async def test_several_mistakes_are_one_sentence():
    error = await refusal(CHAT | {"temperature": "a", "top_p": "b", "n": "c", "seed": "d", "max_tokens": "e"})
    assert error["param"] == "temperature"
    assert error["message"].endswith("and 2 more")
    assert error["message"].count(";") == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"), ({"max_tokens": 0}, "max_tokens")],
)
async def test_a_value_out_of_range_is_named_with_its_field(fields: dict[str, Any], param: str):
    for is_stream in (False, True):
        response = await post(FakeGenerator(), PATH, CHAT | fields | {"stream": is_stream})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_integers_may_be_written_as_floats():
    response = await post(FakeGenerator(), PATH, CHAT | {"max_tokens": 1.0})
    assert response.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("seed", [-(2**63), 2**63, 2**64 - 1])
async def test_any_64_bits_are_a_seed(seed: int):
    assert (await post(FakeGenerator(), PATH, CHAT | {"seed": seed})).status_code == 200


async def test_content_type_and_lone_fields_do_not_matter():
    async with client(FakeGenerator()) as http:
        content = f"{{{MESSAGES}}}".encode()
        response = await http.post(PATH, content=content, headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.status_code == 200


async def test_unknown_fields_are_ignored_with_a_header_and_logged_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        async with client(FakeGenerator()) as http:
            first = await http.post(PATH, json=CHAT | {"zeta": 1, "alpha\r\n": 2})
            again = await http.post(PATH, json=CHAT | {"zeta": 1, "stream": True})
    assert first.headers["x-octavo-warning"] == "ignored unknown fields: alpha??, zeta"
    assert again.headers["x-octavo-warning"] == "ignored unknown fields: zeta"
    assert [record.getMessage() for record in caplog.records] == ["unknown_fields_ignored"]


async def test_many_unknown_fields_make_a_short_header():
    response = await post(FakeGenerator(), PATH, CHAT | {f"field-{i}-{'é' * 1000}": i for i in range(500)})
    assert response.status_code == 200
    assert response.headers["x-octavo-warning"].endswith("and 492 more")
    assert len(response.headers["x-octavo-warning"]) < 2500


async def test_strict_params_refuses_unknown_fields_but_not_harmless_ones():
    strict = GatewayConfig(strict_params=True)
    error = await refusal(CHAT | {"zeta": 1}, strict)
    assert (error["param"], "zeta" in error["message"]) == ("zeta", True)
    assert (await post(FakeGenerator(), PATH, CHAT | {"user": "u", "store": False}, strict)).status_code == 200


async def test_known_harmless_fields_give_no_warning():
    harmless = {"user": "u", "metadata": {}, "store": True, "verbosity": "low", "prompt_cache_key": "k"}
    response = await post(FakeGenerator(), PATH, CHAT | harmless)
    assert response.status_code == 200
    assert "x-octavo-warning" not in response.headers


async def test_a_body_over_the_limit_is_413():
    settings = GatewayConfig(limits=Limits(max_body_bytes=100))
    response = await post(FakeGenerator(), PATH, CHAT | {"user": "u" * 100}, settings)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert "100 bytes" in response.json()["error"]["message"]


async def test_a_body_over_the_limit_is_413_also_when_its_length_was_not_announced():
    async def pieces():
        for _ in range(20):
            yield b"x" * 10_000

    settings = GatewayConfig(limits=Limits(max_body_bytes=100_000))
    async with uvicorn_serving(FakeGenerator(), settings) as url, httpx.AsyncClient(base_url=url) as http:
        response = await http.post(PATH, content=pieces())
        assert response.status_code == 413
        assert (await http.post(PATH, json=CHAT)).status_code == 200, "the connection lives on"
