"""One answer as it grows: tokens in, chunks of text out."""

from collections.abc import Collection, Sequence

from gateway.core.detokenizer import Detokenizer
from gateway.core.generation import FinishReason, PositionLogprobs, TextChunk
from gateway.core.stop import StopMatcher


class Answer:
    """Gathers what came since the last chunk. Tokens after a stop string are dropped."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        matcher: StopMatcher,
        *,
        hidden_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """`hidden_ids`: tokens that end the answer and whose text is not a part of it.

        Stop strings are looked for only in the text of tokens after the first `min_tokens`.
        """
        self.index = index
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._hidden_ids = hidden_ids
        self._min_tokens = min_tokens
        self._stop_token_id: int | None = None
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._is_last_chunk_taken = False

    def push(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs] = ()) -> None:
        """Add tokens, with one entry of `logprobs` each or none at all. A stop string finishes the answer."""
        for at, token_id in enumerate(token_ids):
            if self.finish_reason is not None:
                return
            self.num_tokens += 1
            self._token_ids.append(token_id)
            self._logprobs.extend(logprobs[at : at + 1])
            if token_id not in self._hidden_ids:
                self._show(self._detokenizer.push(token_id))

    def finish(self, reason: FinishReason, *, stop_token_id: int | None = None) -> None:
        """No more tokens. Changes nothing if a stop string finished the answer before."""
        if self.finish_reason is not None:
            return
        self._show(self._detokenizer.flush())
        self._text.append(self._matcher.flush())
        if self.finish_reason is None:
            self.finish_reason = reason
            self._stop_token_id = stop_token_id

    def take_chunk(self) -> TextChunk | None:
        """Everything since the last chunk; None if there is nothing, or the last chunk was taken."""
        if self._is_last_chunk_taken or (not self._token_ids and self.finish_reason is None):
            return None
        chunk = TextChunk(
            index=self.index,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            finish_reason=self.finish_reason,
            stop_sequence=self._matcher.matched,
            stop_token_id=self._stop_token_id,
        )
        self._text, self._token_ids, self._logprobs = [], [], []
        self._is_last_chunk_taken = self.finish_reason is not None
        return chunk

    def _show(self, text: str) -> None:
        if self.num_tokens <= self._min_tokens:
            self._text.append(text)
            return
        self._text.append(self._matcher.push(text))
        if self._matcher.matched is not None:
            self.finish_reason = FinishReason.STOP
