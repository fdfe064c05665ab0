"""Turns what was granted into the next step: who advances, who is let in, who has lost its blocks."""

from collections.abc import Collection, Sequence

from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import Flight, SentStep
from scheduler_service.core.outcome import Settlement
from scheduler_service.core.plan import Admission, AdmissionStatus, Grants, Limits, Pool
from scheduler_service.core.planner import Wishes
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster
from scheduler_service.core.step_delta import Moves, StepDelta


class Dispatch:
    """Changes the roster and the flight as a settled plan says."""

    def __init__(self, roster: Roster, flight: Flight, figures: Figures, *, limits: Limits, pool: Pool) -> None:
        self.delta = StepDelta()
        self._roster = roster
        self._flight = flight
        self._figures = figures
        self._limits = limits
        self._pool = pool

    def settle(self, wishes: Wishes, grants: Grants | None) -> Settlement:
        """A step holds exactly what was granted. None: every row was inside blocks it holds, and moves as wished."""
        settlement = Settlement()
        if grants is None:
            assert not wishes.plan.needs_answer, f"plan {wishes.plan.step} needs grants"
            moves = Moves(wishes.rows.requests, wishes.rows.num_tokens)
        else:
            moves = self._granted(wishes, grants, settlement)
        if moves.requests:
            self._send(moves, settlement, step=wishes.plan.step if grants is not None else None)
        return settlement

    def _granted(self, wishes: Wishes, grants: Grants, settlement: Settlement) -> Moves:
        plan, roster = wishes.plan, self._roster
        self._flight.last_step = plan.step
        self._flight.told_step = plan.acked_step
        self._figures.pool = grants.figures
        roster.pending.settled(wishes.admits)
        lost = [roster.by_handle[handle] for handle in grants.preempted_handles]
        moves = _grown(wishes, grants, lost)
        if wishes.displaced is not None:
            lost.append(wishes.displaced)
        settlement.preempted = roster.preempt(lost)
        self._figures.num_preemptions += len(lost)
        settlement.finished += self._outgrown(settlement.preempted)
        self._note_waiting(wishes, grants)
        for request, admission in zip(wishes.admits, grants.admissions, strict=True):
            request.is_declared = True
            if admission.status is AdmissionStatus.ADMITTED:
                self._admit(request, admission, moves)
                settlement.admitted.append(request)
            elif admission.status is AdmissionStatus.REFUSED:
                settlement.finished += self._refused(request, grants)
        return moves

    def _admit(self, request: Request, admission: Admission, moves: Moves) -> None:
        self._figures.count_admission(request, admission.num_cached_tokens)
        if not request.was_admitted:
            request.was_admitted = True
            request.num_cached_tokens = min(admission.num_cached_tokens, request.num_prompt_tokens)
        self._roster.admit(request)
        request.take_table(admission.block_ids)
        request.num_computed_tokens = request.num_unacked_hits = admission.num_cached_tokens
        request.num_told_tokens = admission.num_cached_tokens + admission.num_granted_tokens
        request.num_committed_tokens = admission.num_cached_tokens
        moves.add(request, admission.num_granted_tokens)
        moves.num_admissions += 1

    def _outgrown(self, preempted: Sequence[Request]) -> list[Request]:
        """Those that have more tokens than the empty pool has room for: to let them in again would lead nowhere."""
        outgrown = [r for r in preempted if self._pool.num_blocks_for(r.num_known_tokens) >= self._pool.num_blocks]
        for request in outgrown:
            self._roster.finish(request, Status.LENGTH, "kv_capacity")
        return outgrown

    def _refused(self, request: Request, grants: Grants) -> list[Request]:
        """A request that does not fit an otherwise empty pool never will: it ends with what it has."""
        if request.is_suspect:
            self._roster.is_solo_refused = True
        if grants.figures.is_held_by_others:
            return []
        self._roster.finish(request, Status.LENGTH, "kv_capacity")
        return [request]

    def _note_waiting(self, wishes: Wishes, grants: Grants) -> None:
        """Remember, for whoever asks why a request waited, what this plan lacked."""
        head = self._roster.waiting.head()
        if not wishes.admits and head is not None and not head.num_in_flight:
            head.waited_for = "max_seqs"
        is_short_of_blocks = bool(grants.preempted_handles)
        for request, admission in zip(wishes.admits, grants.admissions, strict=True):
            is_short_of_blocks |= admission.status is AdmissionStatus.REFUSED
            if admission.status is not AdmissionStatus.ADMITTED:
                request.waited_for = "kv_blocks" if is_short_of_blocks else "batch_tokens"

    def _send(self, moves: Moves, settlement: Settlement, *, step: int | None) -> None:
        flight, roster = self._flight, self._roster
        self._figures.count_step(moves)
        for row, block_ids in moves.new_block_ids.items():
            moves.requests[row].extend_table(block_ids)
        settlement.step = self.delta.build(
            moves,
            step=flight.last_step,
            seq=flight.next_seq,
            acked_seq=flight.acked_seq,
            released=roster.released_handles,
        )
        roster.released_handles.clear()
        settlement.sent = SentStep(
            seq=flight.next_seq,
            step=step,
            requests=moves.requests,
            epochs=[request.epoch for request in moves.requests],
            num_tokens=moves.num_tokens,
            is_sampling=[],
            num_drafts={},
        )
        is_filling = _take_off(settlement.sent, block_size=self._pool.block_size)
        flight.send(settlement.sent, is_filling=is_filling)
        num_tokens = sum(moves.num_tokens)
        assert num_tokens <= self._limits.max_num_batched_tokens, f"step of {num_tokens} tokens is over the budget"


def _grown(wishes: Wishes, grants: Grants, lost: Collection[Request]) -> Moves:
    """The moves of running requests, in plan order, without those whose blocks were taken."""
    answers = zip(grants.grow_num_tokens, grants.grow_num_new_blocks, strict=True)
    new_block_ids, num_used = grants.grow_new_block_ids, 0
    moves = Moves()
    for request, num_wished, want in zip(wishes.rows.requests, wishes.rows.num_tokens, wishes.wants, strict=True):
        num_tokens, num_blocks = num_wished, 0
        if want > 0:
            num_granted, num_blocks = next(answers)
            num_tokens = num_granted - (want - num_wished) if num_granted else 0
            request.num_told_tokens += num_granted
        if num_tokens > 0 and request not in lost:
            if num_blocks:
                moves.new_block_ids[len(moves.requests)] = new_block_ids[num_used : num_used + num_blocks]
            moves.add(request, num_tokens)
        num_used += num_blocks
    return moves


def _take_off(sent: SentStep, *, block_size: int) -> bool:
    """Advance the requests of a step: `num_computed_tokens` at once, a placeholder for what will be sampled.

    Returns whether any of them now ends, or has passed, the last token of a block.
    """
    is_filling = False
    for row, (request, num_tokens) in enumerate(zip(sent.requests, sent.num_tokens, strict=True)):
        done = request.num_computed_tokens = request.num_computed_tokens + num_tokens
        num_drafts = done - len(request.token_ids) - request.hold  # negative: the step ends before the last known token
        if done % block_size < num_tokens:
            is_filling = True
        if num_drafts >= 0:
            request.hold += 1 + num_drafts
        if num_drafts > 0:
            sent.num_drafts[row] = num_drafts
        sent.is_sampling.append(num_drafts >= 0)
        request.drafts = ()
    return is_filling
