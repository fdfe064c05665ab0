"""Takes what comes back of a step: ids for the placeholders, or a fault that sends its requests back to the queue."""

import itertools
from collections.abc import Sequence
from typing import Final

from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import Flight, SentRow, SentStep
from scheduler_service.core.outcome import Output, Update
from scheduler_service.core.plan import StepResult, StepStatus
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster
from scheduler_service.core.step_delta import StepDelta

MAX_FAULTS: Final = 3  # consecutive faults or worker deaths that end a request as POISONED


class Arrival:
    """Changes the roster and the flight as a result says."""

    def __init__(self, roster: Roster, flight: Flight, figures: Figures, *, delta: StepDelta, block_size: int) -> None:
        self._roster = roster
        self._flight = flight
        self._figures = figures
        self._delta = delta
        self._block_size = block_size

    def take(self, result: StepResult) -> Update:
        """The result of the oldest step in flight."""
        sent = self._flight.answered(result.seq)
        match result.status:
            case StepStatus.OK:
                return self._advance(sent, result)
            case StepStatus.FAULT:
                return self._fail(sent, is_blamed=True)
            case StepStatus.VOID:
                return Update(sent=sent) if sent.is_failed else self._fail(sent, is_blamed=False)

    def worker_lost(self) -> list[Request]:
        """Nothing in flight will come back. Returns the requests that this was once too often for."""
        poisoned = self._blame([row for sent in self._flight.steps for row in sent.rows])
        self._flight.steps.clear()
        return poisoned

    def _advance(self, sent: SentStep, result: StepResult) -> Update:
        update = Update(sent=sent)
        token_ids, counts = iter(result.token_ids), iter(result.num_tokens or itertools.repeat(1))
        for row in sent.rows:
            sampled = list(itertools.islice(token_ids, next(counts))) if row.is_sampling else []
            kept = [] if row.request.is_finished else self._land(row, sampled, update)
            if row.is_sampling:
                update.outputs.append(Output(row.request, kept))
        assert next(token_ids, None) is None, f"step {sent.seq} brought more tokens than it has sampling rows"
        return update

    def _land(self, row: SentRow, sampled: list[int], update: Update) -> list[int]:
        """Acknowledge a row's positions, if its blocks are still the same, and take its tokens in any case."""
        request = row.request
        if row.epoch == request.epoch:
            num_accepted = min(max(len(sampled) - 1, 0), row.num_drafts)
            num_rejected = row.num_drafts - num_accepted + (not sampled) if row.is_sampling else 0
            if row.is_sampling:
                request.hold -= 1 + row.num_drafts
                self._figures.count_drafts(row.num_drafts, num_accepted)
            request.num_computed_tokens -= num_rejected
            request.num_acked_tokens += row.num_tokens - num_rejected
            block_size = self._block_size
            if request.num_acked_tokens // block_size > request.num_committed_tokens // block_size:
                self._roster.pending.commit(request)
        kept = request.append(sampled)
        self._figures.num_output_tokens += len(kept)
        if request.is_finished:
            self._roster.finish(request, request.status)
            update.finished.append(request)
        return kept

    def _fail(self, sent: SentStep, *, is_blamed: bool) -> Update:
        """A step failed, and every later one with it: their requests go back to the queue, outputs kept."""
        failed = [sent, *self._flight.steps]
        for step in failed:
            step.is_failed = True
            if step.step is not None:
                self._roster.pending.fail(step.step)
        self._delta.forget()
        update = Update(sent=sent, finished=self._blame(sent.rows) if is_blamed else [])
        involved = {row.request for step in failed for row in step.rows}
        update.preempted = self._roster.release([r for r in self._roster.running if r in involved])
        self._figures.num_preemptions += len(update.preempted)
        return update

    def _blame(self, rows: Sequence[SentRow]) -> list[Request]:
        """One fault more for each request of these rows; the third in a row ends it. Returns the ended."""
        poisoned = []
        for request in dict.fromkeys(row.request for row in rows):
            if request.is_finished:
                continue
            request.num_faults += 1
            if request.num_faults >= MAX_FAULTS:
                self._roster.finish(request, Status.ERROR, "POISONED")
                poisoned.append(request)
        return poisoned
