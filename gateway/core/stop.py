"""Finds stop strings in a text that arrives in pieces, and shows nothing that may turn out to be a part of one."""

from collections.abc import Sequence


class StopMatcher:
    """Cuts a text at the first stop string that is complete; of several that end there, at the longest.

    The result does not depend on how the text is cut into pieces. Text that could be the beginning of a stop string
    is held back until it is clear.
    """

    def __init__(self, stop_sequences: Sequence[str], *, include_stop: bool = False) -> None:
        self._stop_sequences = stop_sequences
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that may be shown now. After a match that is nothing, ever."""
        if self.matched is not None:
            return ""
        if not self._stop_sequences:
            return text
        self._held += text
        found = min(
            (
                (start + len(sequence), start, sequence)
                for sequence in self._stop_sequences
                if (start := self._held.find(sequence)) >= 0
            ),
            default=None,
        )
        if found is None:
            return self._release(len(self._held) - self._num_doubtful())
        end, start, self.matched = found
        return self._release(end if self._include_stop else start)

    def flush(self) -> str:
        """What was held back, when no text follows; nothing after a match."""
        return "" if self.matched is not None else self._release(len(self._held))

    def _release(self, num_chars: int) -> str:
        shown, self._held = self._held[:num_chars], self._held[num_chars:]
        return shown

    def _num_doubtful(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(len(sequence) for sequence in self._stop_sequences) - 1
        for num_chars in range(min(longest, len(self._held)), 0, -1):
            ending = self._held[-num_chars:]
            if any(sequence.startswith(ending) for sequence in self._stop_sequences):
                return num_chars
        return 0
