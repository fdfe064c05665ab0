"""Logprobs in the two forms of the OpenAI API. Pure.

A token can be a part of a character; then its text is its bytes, written \\xNN.
"""

import codecs
from collections.abc import Iterable

from gateway.core.generation import PositionLogprobs, TokenLogprob
from gateway.openai.json_value import Json

_LOWEST = -9999.0  # JSON has no minus infinity; this is what OpenAI sends for it


def chat_logprobs(positions: Iterable[PositionLogprobs]) -> Json:
    """`choices[].logprobs` of a chat: {"content": [...]}."""
    content = [
        _chat_token(position.sampled) | {"top_logprobs": [_chat_token(token) for token in position.top]}
        for position in positions
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Builds `choices[].logprobs` of text completions, which count characters from the start of the answer."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def add(self, positions: Iterable[PositionLogprobs]) -> Json:
        """The object for the next positions; `text_offset` goes on from those before."""
        tokens: list[str] = []
        token_logprobs: list[float] = []
        top_logprobs: list[dict[str, float]] = []
        text_offset: list[int] = []
        for position in positions:
            sampled = position.sampled
            tokens.append(_text_or_bytes(sampled.token))
            token_logprobs.append(_finite(sampled.logprob))
            # The sampled token is always among them, as OpenAI does, so there may be one more than asked for.
            top = {_text_or_bytes(token.token): _finite(token.logprob) for token in position.top}
            top.setdefault(tokens[-1], token_logprobs[-1])
            top_logprobs.append(top)
            text_offset.append(self._num_chars)
            self._num_chars += len(self._decoder.decode(sampled.token))
        return {
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        }


def token_text(token: bytes) -> str:
    """A token as text, or its bytes as \\xNN where it is no whole character."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in token)


def _text_or_bytes(token: bytes) -> str:
    """As token_text, but bytes are marked as OpenAI's text completions mark them: they are keys of a dict."""
    text = token_text(token)
    return f"bytes:{text}" if text.startswith("\\x") and not token.startswith(b"\\x") else text


def _chat_token(token: TokenLogprob) -> Json:
    return {"token": token_text(token.token), "logprob": _finite(token.logprob), "bytes": list(token.token)}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
