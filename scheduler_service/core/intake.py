"""Decides whether a newcomer is taken; changes nothing but what those who are sent away are told."""

from scheduler_service.core import rejection
from scheduler_service.core.backlog import Queued
from scheduler_service.core.drain_rate import DrainRate
from scheduler_service.core.plan import Limits, Pool
from scheduler_service.core.request import Request
from scheduler_service.core.roster import Roster


class Intake:
    """The door of one worker's scheduler."""

    def __init__(self, roster: Roster, drain: DrainRate, *, limits: Limits, pool: Pool) -> None:
        self._roster = roster
        self._drain = drain
        self._limits = limits
        self._pool = pool

    def check(self, request: Request, *, is_owed: bool, now_s: float) -> None:
        """Raise a `rejection.Rejected` for a request that can never run here, finds no place or comes too late.

        One that has outputs was taken before, by this scheduler or by the one before it. Like one that `is_owed` an
        answer, it is not refused for what will pass.
        """
        if not request.num_output_tokens:
            rejection.check_fits(request, self._pool)
            rejection.check_rules(request, self._pool)
        if not is_owed and not request.num_output_tokens:
            backlog = self._roster.waiting.backlog
            rejection.check_queue(request, backlog, self._limits, drain=self._drain, now_s=now_s)
            if request.deadline_s is not None:
                ahead = self._roster.waiting.ahead_of(request)
                predicted_s = self.predicted_ttft_s(ahead, request.num_expected_tokens, now_s)
                rejection.check_deadline(request, predicted_s, now_s=now_s)

    def predicted_ttft_s(self, ahead: Queued, num_own_tokens: int, now_s: float) -> float | None:
        """Of a newcomer behind that load; None while nothing is measured."""
        return self._drain.predicted_ttft_s(
            ahead=ahead,
            num_running_tokens=self._roster.num_running_tokens,
            num_own_tokens=num_own_tokens,
            now_s=now_s,
        )
