"""How one try of a client ended, and all tries of one request."""

import enum
from dataclasses import dataclass, field

from tests.chaos.requests import Request
from tests.chaos.transcript import Transcript


class Ending(enum.Enum):
    """Why a try ended."""

    COMPLETE = "complete"  # the server said so; whether it is right is for the verdict
    LEFT = "left"  # the client went away
    REFUSED = "refused"  # by the server, before the first event, with a status that says: ask again
    FAILED = "failed"  # by the server, with any other status or at any other time
    DEADLINE = "deadline"  # the time that the client had given was over, said by either side
    BROKEN = "broken"  # the connection ended or could not be made; nobody said anything
    SILENT = "silent"  # nothing came for so long that the client hung up


RETRIED = (Ending.REFUSED, Ending.BROKEN, Ending.SILENT)  # as docs/protocol.md tells clients


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try. Times are those of time.monotonic()."""

    started_s: float
    ended_s: float
    transcript: Transcript
    ending: Ending
    detail: str = ""  # the status and what it said, or how the connection ended
    retry_after_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """A request and its tries, the last of which ended it."""

    request: Request
    stream: int  # which of the load's clients sent it
    attempts: list[Attempt] = field(default_factory=list)
    current: Transcript | None = None  # of the try under way

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def started_s(self) -> float:
        return self.attempts[0].started_s

    @property
    def ended_s(self) -> float:
        return self.last.ended_s
