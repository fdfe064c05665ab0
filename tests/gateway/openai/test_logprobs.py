"""Logprobs in OpenAI's two forms."""

from typing import Any

import pytest

from gateway.core.generation import PositionLogprobs, TokenLogprob
from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs, token_text


def token(text: bytes, logprob: float = -0.5, token_id: int = 1) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, token=text, logprob=logprob)


def position(sampled: TokenLogprob, *top: TokenLogprob) -> PositionLogprobs:
    return PositionLogprobs(sampled=sampled, top=top)


def test_chat_logprobs_name_token_bytes_and_the_most_likely():
    assert chat_logprobs([position(token(b"a"), token(b"a"), token(b"b", -1.5))]) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "b", "logprob": -1.5, "bytes": [98]},
                ],
            }
        ],
        "refusal": None,
    }


def test_minus_infinity_becomes_a_number_that_json_has():
    told: Any = chat_logprobs([position(token(b"a", float("-inf")))])
    assert told["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize(("data", "text"), [(b"a", "a"), ("é".encode(), "é"), (b"\xe2\x82", r"\xe2\x82"), (b"", "")])
def test_a_part_of_a_character_is_written_as_its_bytes(data: bytes, text: str):
    assert token_text(data) == text


def test_completion_offsets_count_characters_also_of_tokens_that_share_one():
    euro = "€".encode()
    logprobs = CompletionLogprobs()
    first = logprobs.add([position(token(b"ab")), position(token(euro[:1])), position(token(euro[1:]))])
    second = logprobs.add([position(token(b"c"))])
    assert first["text_offset"] == [0, 2, 2]
    assert second["text_offset"] == [3]
    assert first["tokens"] == ["ab", r"bytes:\xe2", r"bytes:\x82\xac"]


def test_completion_top_logprobs_always_hold_the_sampled_token():
    told = CompletionLogprobs().add([position(token(b"rare", -9.0), token(b"a", -0.1), token(b"b", -0.2))])
    assert told["top_logprobs"] == [{"a": -0.1, "b": -0.2, "rare": -9.0}]
    assert told["token_logprobs"] == [-9.0]
