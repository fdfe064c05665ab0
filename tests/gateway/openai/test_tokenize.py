"""/tokenize and /detokenize in vLLM's shapes."""

from typing import Any

import pytest

from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import post


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_a_text_becomes_token_ids(path: str):
    response = await post(FakeGenerator(), path, {"prompt": "ab", "model": "m"})
    assert response.json() == {"count": 2, "max_model_len": 64, "tokens": [97, 98], "token_strs": None}


async def test_a_chat_becomes_token_ids_and_strings_are_told_when_asked_for():
    body = {"messages": [{"role": "user", "content": "é"}], "return_token_strs": True}
    response = await post(FakeGenerator(), "/tokenize", body)
    assert response.json()["tokens"] == [0xC3, 0xA9]
    assert response.json()["token_strs"] == [r"\xc3", r"\xa9"]


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_token_ids_become_a_text(path: str):
    assert (await post(FakeGenerator(), path, {"tokens": [97, 98]})).json() == {"prompt": "ab"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_a_wrong_body_is_named(path: str, body: Any, param: str):
    response = await post(FakeGenerator(), path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_unknown_model_is_404():
    assert (await post(FakeGenerator(), "/tokenize", {"prompt": "a", "model": "x"})).status_code == 404
