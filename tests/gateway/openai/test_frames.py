"""The frames of a stream, as text and as what a client parses."""

import json
from typing import Any

import pytest

from gateway.core.generation import FinishReason
from gateway.openai.frames import CHAT, COMPLETION, Extras, Frames, Shape, error_frame


def frames(shape: Shape = CHAT) -> Frames:
    return Frames(shape, response_id="id-1", created=7, model='m "q"', fingerprint="fp_1")


def parsed(frame: str) -> Any:
    assert frame.startswith("data: ")
    assert frame.endswith("\n\n")
    assert frame.count("\n") == 2, "a frame is one line and a blank one"
    return json.loads(frame.removeprefix("data: "))


def test_a_chat_frame_is_exactly_openais():
    assert parsed(frames().text(0, "hi")) == {
        "id": "id-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": 'm "q"',
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None}],
    }


def test_a_completion_frame_is_exactly_openais():
    frame = parsed(frames(COMPLETION).text(3, "hi"))
    assert frame["object"] == "text_completion"
    assert frame["choices"] == [{"index": 3, "text": "hi", "logprobs": None, "finish_reason": None}]


@pytest.mark.parametrize("text", ['"', "\\", "\n\n", "\x00\x1f", "é€😀", "\u2028", "data: [DONE]"])
def test_any_text_survives(text: str):
    assert parsed(frames().text(0, text))["choices"][0]["delta"]["content"] == text
    assert parsed(frames(COMPLETION).text_with(0, text, extras=Extras()))["choices"][0]["text"] == text


def test_a_chat_begins_with_its_role_and_a_completion_with_nothing():
    assert parsed(frames().first(1))["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert frames(COMPLETION).first(0) == ""


def test_the_finish_frame_has_no_text_and_names_the_stop():
    chat = parsed(frames().finish(0, FinishReason.STOP, stop_reason="END"))["choices"][0]
    assert chat == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    text = parsed(frames(COMPLETION).finish(0, FinishReason.LENGTH, stop_reason=None))["choices"][0]
    assert (text["text"], text["finish_reason"], text["stop_reason"]) == ("", "length", None)


def test_extras_stand_where_clients_look_for_them():
    frame = parsed(
        frames().text_with(0, "a", extras=Extras(logprobs='{"content":[]}', token_ids=(5, 6), usage='{"n":1}'))
    )
    (choice,) = frame["choices"]
    assert choice["logprobs"] == {"content": []}
    assert choice["token_ids"] == [5, 6]
    assert frame["usage"] == {"n": 1}


def test_the_closing_frame_has_no_choices():
    frame = parsed(frames().closing({"usage": {"total_tokens": 3}}))
    assert frame["choices"] == []
    assert frame["usage"] == {"total_tokens": 3}


def test_an_error_has_a_top_level_error():
    assert parsed(error_frame({"error": {"message": "a\nb"}})) == {"error": {"message": "a\nb"}}
