"""Decides whether a newcomer is taken; changes nothing but what those who are sent away are told."""

from typing import Final

from scheduler_service.core import rejection
from scheduler_service.core.backlog import Queued
from scheduler_service.core.drain_rate import LIKELY, SURE, DrainRate, Gap
from scheduler_service.core.places import Line, Places
from scheduler_service.core.plan import Limits, Pool
from scheduler_service.core.request import Request
from scheduler_service.core.roster import Roster

HELD_UP: Final = ("kv_blocks", "batch_tokens", "max_seqs")  # what the head of the queue was refused for, if it was


class Intake:
    """The door of one worker's scheduler."""

    def __init__(self, roster: Roster, drain: DrainRate, *, limits: Limits, pool: Pool, places: Places) -> None:
        self._roster = roster
        self._drain = drain
        self._limits = limits
        self._pool = pool
        self._line = Line(places)

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
            if self._limits.max_queue_wait_s:
                self._check_wait(request, now_s)

    def predicted_ttft_s(self, ahead: Queued, num_own_tokens: int, now_s: float) -> float | None:
        """Of a newcomer behind that load; None while nothing is measured."""
        return self._drain.predicted_ttft_s(
            ahead=ahead,
            num_running_tokens=self._roster.num_running_tokens,
            num_own_tokens=num_own_tokens,
            now_s=now_s,
        )

    def _check_wait(self, request: Request, now_s: float) -> None:
        """Raise when the first token would come too late, and keep a place for when it would not.

        Newcomers leave room for those who were told to come in the next quarter of the bound, and have to be in time
        almost surely. A request's own prompt counts for half of the bound at most: however long, it is taken when
        nobody waits.
        """
        bound_s, places = self._limits.max_queue_wait_s, self._line.places
        place = places.find(request, now_s)
        is_due = place is not None and place.is_due(now_s)
        num_expected = 0 if is_due else self._line.num_due(now_s=now_s, until_s=now_s + bound_s / 4)
        gap = self._gap(num_expected, now_s)
        own_s = self._drain.own_s(request.num_expected_tokens)
        ahead = self._roster.order.expected_ahead(request, self._roster.waiting.backlog)
        num_tokens = self._roster.num_running_tokens + ahead.num_tokens
        wait_s = num_tokens / rate if (rate := self._drain.tokens_per_s) else 0.0
        if gap is not None:
            num_leaving = ahead.num_requests + 1 + num_expected
            wait_s = max(wait_s, gap.wait_s(num_leaving, LIKELY if is_due else SURE))
        predicted_s = wait_s + min(own_s, bound_s / 2)
        if predicted_s > bound_s:
            retry_after_s = self._line.send_away(
                request, room_in_s=predicted_s - bound_s, gap_s=own_s if gap is None else gap.mean_s, now_s=now_s
            )
            raise rejection.queue_too_long(predicted_s, self._limits, retry_after_s=retry_after_s)
        if place is not None:
            places.end(place)

    def _gap(self, num_expected: int, now_s: float) -> Gap | None:
        """Between two requests that leave the queue; None if a newcomer would not wait for one to leave.

        Of the free places an eighth at most is kept for those who are expected: they may not come.
        """
        num_slots, waiting = self._limits.max_num_seqs, self._roster.waiting
        num_taken = self._roster.num_occupied + len(waiting) + min(num_expected, num_slots // 8)
        head = waiting.head()
        is_held_up = head is not None and head.waited_for in HELD_UP
        if num_taken < num_slots and not is_held_up:
            return None
        return self._drain.gap(self._roster.running, now_s)
