"""Takes what comes back of a step: ids for the placeholders, or a fault that sends its requests back to the queue."""

from collections.abc import Sequence

from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import Flight, SentStep
from scheduler_service.core.outcome import Output, Update
from scheduler_service.core.plan import StepResult, StepStatus
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster
from scheduler_service.core.step_delta import StepDelta


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

    def worker_lost(self, *, has_left: bool) -> list[Request]:
        """Nothing in flight will come back. Returns the requests that this was once too often for.

        Steps that an earlier one's failure made void, and those that a worker leaves undone, were not run: nobody in
        them is to blame.
        """
        ran = [sent for sent in self._flight.steps if not sent.is_failed and not has_left]
        poisoned = self._blame([request for sent in ran for request in sent.requests])
        self._flight.steps.clear()
        return poisoned

    def _advance(self, sent: SentStep, result: StepResult) -> Update:
        update = Update(sent=sent)
        token_ids, counts, num_taken = result.token_ids, iter(result.num_tokens), 0
        columns = zip(sent.requests, sent.epochs, sent.num_tokens, sent.is_sampling, strict=True)
        for row, (request, epoch, num_tokens, is_sampling) in enumerate(columns):
            sampled: Sequence[int] = ()
            if is_sampling:
                sampled = token_ids[num_taken : num_taken + next(counts, 1)]
                num_taken += len(sampled)
            was_finished = request.is_finished
            if not was_finished and epoch == request.epoch:
                num_rejected = self._num_rejected(sent, row, len(sampled)) if is_sampling else 0
                self._acknowledge(request, num_tokens - num_rejected)
            if is_sampling:
                update.outputs.append(Output(request, [] if was_finished else request.append(sampled)))
            if request.is_finished and not was_finished:
                self._roster.finish(request, request.status)
                update.finished.append(request)
            elif is_sampling and not sampled:
                update.finished += self._blame([request])  # a worker that never brings a token would never be done
        self._figures.num_output_tokens += sum(len(output.token_ids) for output in update.outputs)
        assert num_taken == len(token_ids), f"step {sent.seq} brought {len(token_ids)} tokens, for {num_taken} places"
        return update

    def _num_rejected(self, sent: SentStep, row: int, num_sampled: int) -> int:
        """Lift the placeholders of a row that brought `num_sampled` tokens; how many of its positions are void."""
        request, num_drafts = sent.requests[row], sent.num_drafts.get(row, 0)
        request.hold -= 1 + num_drafts
        if num_drafts == 0 and num_sampled:
            return 0
        num_accepted = min(max(num_sampled - 1, 0), num_drafts)
        num_rejected = num_drafts - num_accepted + (num_sampled == 0)
        request.num_computed_tokens -= num_rejected
        self._figures.count_drafts(num_drafts, num_accepted)
        return num_rejected

    def _acknowledge(self, request: Request, num_tokens: int) -> None:
        """Positions are written; those that complete a block are to be committed."""
        num_acked = request.num_acked_tokens = request.num_acked_tokens + request.num_unacked_hits + num_tokens
        request.num_unacked_hits = 0
        if num_acked // self._block_size > request.num_committed_tokens // self._block_size:
            self._roster.pending.commit(request)

    def _fail(self, sent: SentStep, *, is_blamed: bool) -> Update:
        """A step failed, and every later one with it: their requests go back to the queue, outputs kept."""
        failed = [sent, *self._flight.steps]
        for step in failed:
            step.is_failed = True
            if step.step is not None:
                self._roster.pending.fail(step.step)
        self._delta.forget()
        update = Update(sent=sent, finished=self._blame(sent.requests) if is_blamed else [])
        involved = {request for step in failed for request in step.requests}
        update.preempted = self._roster.release([r for r in self._roster.running if r in involved])
        self._figures.num_preemptions += len(update.preempted)
        return update

    def _blame(self, requests: Sequence[Request]) -> list[Request]:
        """One fault more for each of these requests; the third in a row ends it. Returns the ended."""
        poisoned = []
        for request in dict.fromkeys(requests):
            if not request.is_finished and request.blame():
                self._roster.finish(request, Status.ERROR, "POISONED")
                poisoned.append(request)
        return poisoned
