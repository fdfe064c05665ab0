"""Assembles the server-sent events of one streamed answer as text. Pure.

Everything that does not change between chunks is put together once per response; a chunk encodes its text and joins
strings. That matters: the gateway writes one frame per request and step.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.generation import FinishReason
from gateway.openai.json_value import Json

DONE = "data: [DONE]\n\n"
KEEPALIVE = ": keep-alive\n\n"

to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What differs between the chunks of the two endpoints."""

    object_name: str
    before_text: str  # between `"index":0,` and the encoded text
    after_text: str
    empty: str  # the same for a chunk without text
    first: str | None  # a chunk sent before all others, one per choice


CHAT = Shape(
    object_name="chat.completion.chunk",
    before_text='"delta":{"content":',
    after_text="}",
    empty='"delta":{}',
    first='"delta":{"role":"assistant","content":""}',
)
COMPLETION = Shape(
    object_name="text_completion",
    before_text='"text":',
    after_text="",
    empty='"text":""',
    first=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a chunk may carry besides its text, as JSON texts; most carry nothing."""

    logprobs: str = "null"
    token_ids: Sequence[int] | None = None
    usage: str | None = None


NO_EXTRAS = Extras()


class Frames:
    """The frames of one response."""

    def __init__(self, shape: Shape, *, response_id: str, created: int, model: str, fingerprint: str) -> None:
        self._shape = shape
        fields = {
            "id": response_id,
            "object": shape.object_name,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._head = f"data: {to_json(fields)[:-1]},"
        self._starts: dict[int, str] = {}  # choice index -> all that comes before a chunk's text
        self._plain_end = f'{shape.after_text},"logprobs":null,"finish_reason":null}}]}}\n\n'

    def first(self, index: int) -> str:
        """The frame that begins choice `index`; nothing where the endpoint has none."""
        first = self._shape.first
        return "" if first is None else self._frame(index, f'{first},"logprobs":null,"finish_reason":null')

    def text(self, index: int, text: str) -> str:
        """A frame with text and nothing else: nearly every frame there is."""
        start = self._starts.get(index)
        if start is None:
            start = f'{self._head}"choices":[{{"index":{index},{self._shape.before_text}'
            self._starts[index] = start
        return start + to_json(text) + self._plain_end

    def text_with(self, index: int, text: str, *, extras: Extras) -> str:
        """A frame with text and what was asked for besides."""
        shape = self._shape
        choice = f"{shape.before_text}{to_json(text)}{shape.after_text},"
        choice += f'"logprobs":{extras.logprobs},"finish_reason":null'
        if extras.token_ids is not None:
            choice += f',"token_ids":{to_json(list(extras.token_ids))}'
        return self._frame(index, choice, extras.usage)

    def finish(
        self, index: int, reason: FinishReason, *, stop_reason: str | int | None, usage: str | None = None
    ) -> str:
        """The last frame of choice `index`."""
        choice = f'{self._shape.empty},"logprobs":null,"finish_reason":"{reason.value}"'
        return self._frame(index, f'{choice},"stop_reason":{to_json(stop_reason)}', usage)

    def closing(self, more: Json) -> str:
        """A frame without choices, for usage and metrics."""
        return f'{self._head}"choices":[],{to_json(more)[1:]}\n\n'

    def _frame(self, index: int, choice: str, usage: str | None = None) -> str:
        end = "" if usage is None else f',"usage":{usage}'
        return f'{self._head}"choices":[{{"index":{index},{choice}}}]{end}}}\n\n'


def error_frame(body: Json) -> str:
    """An error after the status line: clients look for a top-level `error`."""
    return f"data: {to_json(body)}\n\n"
