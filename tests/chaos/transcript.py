"""What one client has received of one answer, piece by piece, and what was wrong with the way it came. Pure.

Every API's events become the same pieces here; when they came is kept beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The log probabilities of one position, by the token as the API spells it."""

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event adds to one choice."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    finish_reason: str | None = None
    stop_cause: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, as the server counted them. How many were cached depends on what happened before."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Choice:
    """One answer, as far as it has come."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    finish_reason: str | None = None
    stop_cause: str | int | None = None


@dataclass(slots=True)
class Transcript:
    """All of one answer to one request. What may not happen is noted in `violations` and judged elsewhere."""

    num_choices: int
    choices: list[Choice] = field(init=False)
    usage: Usage | None = None
    has_begun: bool = False  # something of the answer came: a retry would be a second answer
    is_closed: bool = False  # the server said that this was all
    violations: list[str] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)  # monotonic time of each event with text or tokens

    def __post_init__(self) -> None:
        self.choices = [Choice() for _ in range(self.num_choices)]

    def add(self, piece: Piece, *, now_s: float) -> None:
        """Take one event."""
        if not 0 <= piece.index < self.num_choices:
            self.violations.append(f"choice {piece.index} came, {self.num_choices} were asked for")
            return
        self._note_late("a piece")
        self.has_begun = True
        choice = self.choices[piece.index]
        if choice.finish_reason is not None:
            self.violations.append(f"choice {piece.index} went on after its end: {piece}")
        if piece.text or piece.token_ids:
            self.arrivals_s.append(now_s)
        choice.text += piece.text
        choice.token_ids += piece.token_ids
        choice.scores += piece.scores
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_cause = piece.finish_reason, piece.stop_cause

    def tell_usage(self, usage: Usage) -> None:
        """The server's count of tokens; said once."""
        self._note_late("usage")
        self.has_begun = True
        if self.usage is not None:
            self.violations.append(f"usage came twice: {self.usage}, then {usage}")
        self.usage = usage

    def close(self) -> None:
        """The server says that nothing follows."""
        self._note_late("the end")
        self.is_closed = True

    def note(self, violation: str) -> None:
        """Something of the protocol itself was wrong."""
        self.violations.append(violation)

    def _note_late(self, what: str) -> None:
        if self.is_closed:
            self.violations.append(f"{what} came after the end")
