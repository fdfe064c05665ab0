"""Notices when a worker's requests do not move any more, and says what they wait for. Time is told, never read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_service.core.request import SET_ASIDE, Request

STALLED_AFTER_S: Final = 5.0  # without a step sent or answered, while there are requests
STEP_STALLED_AFTER_S: Final = 10.0  # the same while a step is at the worker: long prompts take their time
HOPELESS_AFTER_S: Final = 30.0  # of a stall that nobody else will end

# What requests may wait for -> in words.
WAITS_FOR: Mapping[str, str] = {
    "kvcache": "the KV cache service, which does not answer",
    "worker_step": "the worker, which has not answered a step",
    "kv_blocks": "blocks of the KV cache that are not given back",
    "batch_tokens": "room in a step's token budget",
    "max_seqs": "a place among the running requests",
    "waiting_for_grammar": "a grammar",
    "waiting_for_remote_kv": "K/V from elsewhere",
    "loading": "a worker",
    "turn": "its turn",
}


def waits_for(request: Request) -> str:
    """Why a request is not in a step, as far as plans have told: a key of WAITS_FOR."""
    return request.status.value if request.status in SET_ASIDE else request.waited_for or "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Requests that have not moved for some time."""

    waits_for: str  # a key of WAITS_FOR
    since_s: float
    duration_s: float

    @property
    def is_hopeless(self) -> bool:
        """Whether its requests should end: a pool that is away may be opened, a step may be answered."""
        return self.duration_s >= HOPELESS_AFTER_S and self.waits_for not in ("kvcache", "worker_step")


class Progress:
    """Remembers when something moved last."""

    def __init__(self, now_s: float) -> None:
        self._moved_s = now_s

    def moved(self, now_s: float) -> None:
        """A step was sent or answered, a request was let in or ended, or there is nobody to wait."""
        self._moved_s = now_s

    def stall(self, waits_for: str, now_s: float) -> Stall | None:
        """The stall that there is, if any; `waits_for` is empty when nobody waits."""
        if not waits_for:
            self.moved(now_s)
        duration_s = now_s - self._moved_s
        patience_s = STEP_STALLED_AFTER_S if waits_for == "worker_step" else STALLED_AFTER_S
        if duration_s < patience_s:
            return None
        return Stall(waits_for=waits_for, since_s=self._moved_s, duration_s=duration_s)
