"""Turns what was granted into the next step: who advances, who is let in, who has lost its blocks."""

import itertools
from collections.abc import Sequence

from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import Flight, SentRow
from scheduler_service.core.outcome import Settlement
from scheduler_service.core.plan import Admission, AdmissionStatus, Grants, Limits, Pool
from scheduler_service.core.planner import Wishes
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster
from scheduler_service.core.step_delta import Move, StepDelta


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
            moves = [Move(row.request, row.num_tokens, (), is_admission=False) for row in wishes.rows]
        else:
            moves = self._granted(wishes, grants, settlement)
        if moves:
            self._send(moves, settlement, step=wishes.plan.step if grants is not None else None)
        return settlement

    def _granted(self, wishes: Wishes, grants: Grants, settlement: Settlement) -> list[Move]:
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
        self._note_waiting(wishes, grants)
        for request, admission in zip(wishes.admits, grants.admissions, strict=True):
            request.is_declared = True
            if admission.status is AdmissionStatus.ADMITTED:
                moves.append(self._admit(request, admission))
                settlement.admitted.append(request)
            elif admission.status is AdmissionStatus.REFUSED:
                settlement.finished += self._refused(request, grants)
        return moves

    def _admit(self, request: Request, admission: Admission) -> Move:
        self._figures.count_admission(request, admission.num_cached_tokens)
        if not request.was_admitted:
            request.was_admitted = True
            request.num_cached_tokens = min(admission.num_cached_tokens, request.num_prompt_tokens)
        self._roster.admit(request)
        request.block_ids = list(admission.block_ids)
        request.num_computed_tokens = request.num_acked_tokens = admission.num_cached_tokens
        request.num_committed_tokens = admission.num_cached_tokens
        return Move(request, admission.num_granted_tokens, (), is_admission=True)

    def _refused(self, request: Request, grants: Grants) -> list[Request]:
        """A request that does not fit an otherwise empty pool never will: it ends with what it has."""
        if request.is_suspect:
            self._roster.is_solo_refused = True
        if grants.figures.num_held > 0:
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

    def _send(self, moves: Sequence[Move], settlement: Settlement, *, step: int | None) -> None:
        flight, roster = self._flight, self._roster
        self._figures.count_step(moves)
        settlement.step = self.delta.build(
            moves,
            step=flight.last_step,
            seq=flight.next_seq,
            acked_seq=flight.acked_seq,
            released=roster.released_handles,
        )
        roster.released_handles.clear()
        rows = [_take_off(move, is_told=step is not None) for move in moves]
        is_filling = any(row.ends_block(self._pool.block_size) for row in rows)
        settlement.sent = flight.send(rows, step=step, is_filling=is_filling)
        num_tokens = sum(move.num_tokens for move in moves)
        assert num_tokens <= self._limits.max_num_batched_tokens, f"step of {num_tokens} tokens is over the budget"


def _grown(wishes: Wishes, grants: Grants, lost: Sequence[Request]) -> list[Move]:
    """The moves of running requests, in plan order, without those whose blocks were taken."""
    answers = zip(grants.grow_num_tokens, grants.grow_num_new_blocks, strict=True)
    new_ids = iter(grants.grow_new_block_ids)
    moves = []
    for row in wishes.rows:
        num_tokens, block_ids = row.num_tokens, list[int]()
        if row.want > 0:
            num_granted, num_blocks = next(answers)
            block_ids = list(itertools.islice(new_ids, num_blocks))
            num_tokens = num_granted - (row.want - row.num_tokens) if num_granted else 0
        if num_tokens > 0 and row.request not in lost:
            moves.append(Move(row.request, num_tokens, block_ids, is_admission=False))
    return moves


def _take_off(move: Move, *, is_told: bool) -> SentRow:
    """Advance a request by its move: `num_computed_tokens` at once, a placeholder for what will be sampled."""
    request = move.request
    target = request.num_known_tokens + request.hold
    request.block_ids += move.new_block_ids
    request.num_computed_tokens += move.num_tokens
    if is_told:
        request.num_told_tokens = request.num_computed_tokens
    num_drafts = max(0, request.num_computed_tokens - target)
    is_sampling = request.num_computed_tokens >= target
    if is_sampling:
        request.hold += 1 + num_drafts
    request.drafts = ()
    return SentRow(
        request=request,
        epoch=request.epoch,
        num_tokens=move.num_tokens,
        is_sampling=is_sampling,
        num_drafts=num_drafts,
    )
