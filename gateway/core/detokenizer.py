"""Text from tokens, one token at a time, never half a character. Joined, the pieces are the decoded whole.

Knows nothing of a tokenizer but the functions it is given.
"""

import codecs
from collections.abc import Callable, Collection, Sequence

MAX_PENDING_TOKENS = 8  # a character has at most 4 bytes; what is still not text after these never will be

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ByteDetokenizer:
    """For byte-level BPE, where every token is some bytes and the text is their UTF-8 decoding."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, skipped: Collection[int] = ()) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; "" while one is half there."""
        return "" if token_id in self._skipped else self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """What is left when no token follows: a replacement character for half a character, else ""."""
        return self._decoder.decode(b"", final=True)


class PrefixDetokenizer:
    """For decoders where a token's text depends on its neighbours, such as SentencePiece's.

    Decodes a short window twice, without and with the new tokens; the text that is added is new:

        ids    ... | known text | pending |
                   ^prefix      ^read     ^end      new text = decode(prefix:end) - decode(prefix:read)

    A window that ends in a replacement character may end in half of a character, so its text is held back. A run of
    byte tokens that is not UTF-8 comes out as the decoder shows it from where it became known to be broken.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], *, context: Sequence[int] = (), skipped: Collection[int] = ()
    ) -> None:
        """`context`: the last tokens of the prompt, so that the first word keeps its leading space."""
        self._decode = decode
        self._skipped = skipped
        self._window = [token_id for token_id in context if token_id not in skipped]
        self._num_read = len(self._window)

    def push(self, token_id: int) -> str:
        """The characters that this token completes; "" while one is half there."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        return self._text(is_last=len(self._window) - self._num_read >= MAX_PENDING_TOKENS)

    def flush(self) -> str:
        """What is left when no token follows."""
        return self._text(is_last=True)

    def _text(self, *, is_last: bool) -> str:
        known = self._decode(self._window[: self._num_read])
        text = self._decode(self._window)
        if len(text) <= len(known) or (text.endswith(_REPLACEMENT) and not is_last):
            return ""
        self._window = self._window[self._num_read :]
        self._num_read = len(self._window)
        return text[len(known) :]


Detokenizer = ByteDetokenizer | PrefixDetokenizer
