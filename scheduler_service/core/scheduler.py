"""The scheduler of one worker: who advances in each step and by how much, and what came of it.

Pure: it plans (`schedule`), takes the KV cache service's answer (`settle`), and takes the worker's (`update`). It never
sees text, tensors, streams or the clock. Between `schedule` and `settle` nothing else may be called but `abandon`.
"""

from collections import Counter
from collections.abc import Sequence

from scheduler_service.core import progress
from scheduler_service.core.arrival import Arrival
from scheduler_service.core.backlog import Backlog
from scheduler_service.core.dispatch import Dispatch
from scheduler_service.core.drain_rate import DrainRate
from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import WINDOW, Flight
from scheduler_service.core.grant_log import GrantLog, Opening
from scheduler_service.core.intake import Intake
from scheduler_service.core.outcome import Settlement, Update
from scheduler_service.core.places import Places
from scheduler_service.core.plan import DeclaredTable, Grants, Limits, Plan, Pool, PoolFigures, StepResult
from scheduler_service.core.planner import Planner, Wishes
from scheduler_service.core.policy import Policy, order
from scheduler_service.core.request import Entry, Request, Status
from scheduler_service.core.roster import Roster


class Scheduler:
    """One worker's requests, from submit to finish."""

    def __init__(
        self,
        *,
        pool: Pool,
        limits: Limits,
        policy: Policy = Policy.FCFS,
        first_seq: int = 1,
        window: int = WINDOW,
        places: Places | None = None,
    ) -> None:
        """`places` are those of all workers of one scheduler; alone it has its own."""
        self.pool = pool
        self.limits = limits
        self.figures = Figures()
        self._grant_log = GrantLog(pool.block_size)
        self._roster = roster = Roster(order(policy, limits))
        self.drain = DrainRate()
        self._intake = Intake(
            roster, self.drain, limits=limits, pool=pool, places=Places() if places is None else places
        )
        self._flight = Flight(first_seq, window)
        self._planner = Planner(roster, self._flight, self.figures, limits=limits, pool=pool, order=roster.order)
        self._dispatch = Dispatch(self._roster, self._flight, self.figures, limits=limits, pool=pool)
        self._arrival = Arrival(
            self._roster, self._flight, self.figures, delta=self._dispatch.delta, block_size=pool.block_size
        )
        self._wishes: Wishes | None = None
        self._is_stuck = False  # the last plan changed nothing: asking again is of no use until something else does

    @property
    def running(self) -> Sequence[Request]:
        return self._roster.running

    @property
    def waiting(self) -> Sequence[Request]:
        """In queue order, requests that are set aside included."""
        return list(self._roster.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def num_set_aside(self) -> int:
        return self._roster.waiting.num_set_aside

    @property
    def num_requests(self) -> int:
        return len(self._roster.by_id)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens still to be computed for everybody here, as far as the cache is known."""
        return self._roster.num_running_tokens + self._roster.waiting.backlog.total.num_tokens

    @property
    def num_steps_in_flight(self) -> int:
        return len(self._flight.steps)

    @property
    def backlog(self) -> Backlog:
        """How much waits, in all and by tenant."""
        return self._roster.waiting.backlog

    @property
    def num_waiting_by_reason(self) -> dict[str, int]:
        """Of those who wait, how many for what; "turn" are those behind the ones that plans looked at."""
        return dict(Counter(progress.waits_for(request) for request in self._roster.waiting))

    @property
    def acked_seq(self) -> int:
        """The last step whose result was taken."""
        return self._flight.acked_seq

    def get(self, request_id: str) -> Request | None:
        return self._roster.by_id.get(request_id)

    def submit(self, request: Request, entry: Entry = Entry.NEW, *, now_s: float | None = None) -> bool:
        """Take a request; False if the output ids it came with already end it, or leave no room for more here.

        Raises a `rejection.Rejected`, with nothing changed, for one that can never run here, finds the queue full or
        would come too late. One that was on another worker before is owed an answer, the queue's bound included.
        The time is that of its arrival, if none is told.
        """
        assert self._wishes is None, "a plan is being settled"
        is_owed = entry is not Entry.NEW
        self._intake.check(request, is_owed=is_owed, now_s=request.arrival if now_s is None else now_s)
        self._roster.enter(request, max_model_len=self.pool.max_model_len, entry=entry)
        self._is_stuck = False
        if request.stops_here():
            self._roster.finish(request, request.status)
        elif self.pool.num_blocks_for(request.num_known_tokens) >= self.pool.num_blocks:
            self._roster.finish(request, Status.LENGTH, "kv_capacity")
        return not request.is_finished

    def predicted_ttft_s(self, now_s: float) -> float | None:
        """Of a newcomer of one token that waits behind everybody, at the earliest; None while nothing is measured."""
        return self._intake.predicted_ttft_s(self.backlog.total, 1, now_s)

    def expire(self, now_s: float) -> list[Request]:
        """End those who wait and whose deadline has passed: they are in no plan from now on."""
        assert self._wishes is None, "a plan is being settled"
        late = self._roster.waiting.expired(now_s)
        for request in late:
            self._roster.finish(request, Status.ERROR, "DEADLINE_EXCEEDED")
            self._is_stuck = False
        return late

    def waits_for(self, *, is_kv_ready: bool) -> str:
        """What everybody here waits for, a key of `progress.WAITS_FOR`; empty when there is nobody."""
        if not self._roster.by_id:
            return ""
        if not is_kv_ready or self._wishes is not None:  # or it is being asked
            return "kvcache"
        if self._flight.steps:
            return "worker_step"
        head = next(iter(self._roster.waiting), None)
        return progress.waits_for(head) if head is not None else "kv_blocks"

    def ask_again(self) -> None:
        """Something that no plan and no result tells of may have changed, such as a pin that ended."""
        self._is_stuck = False
        self._roster.is_solo_refused = False

    def set_aside(self, request_id: str, status: Status) -> None:
        """A waiting request needs something else first (a grammar, remote K/V); it keeps its place."""
        self._roster.by_id[request_id].enter(status)

    def set_ready(self, request_id: str) -> None:
        """What a set-aside request was waiting for is there."""
        self._roster.by_id[request_id].enter(Status.WAITING)
        self._is_stuck = False

    def abort(self, request_id: str, detail: str = "") -> Request | None:
        """Drop a request: it is in no later plan, its blocks go back with the next one. None if it is not here."""
        return self.end(request_id, Status.ABORTED, detail)

    def end(self, request_id: str, status: Status, detail: str = "") -> Request | None:
        """Finish a request from outside, e.g. with ERROR; None if it is not here."""
        assert self._wishes is None, "a plan is being settled"
        request = self._roster.by_id.get(request_id)
        if request is not None:
            self._roster.finish(request, status, detail)
            self._is_stuck = False
        return request

    def movable(self) -> list[Request]:
        """Requests that could go to another worker, in queue order: without blocks, and in no step that was sent."""
        return [r for r in self._roster.waiting.ready() if not r.num_in_flight and not r.is_suspect]

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Give up movable requests, to be placed anew."""
        assert self._wishes is None, "a plan is being settled"
        for request in requests:
            self._roster.withdraw(request)
        self._is_stuck = False

    def schedule(self, *, is_kv_ready: bool = True) -> Plan | None:
        """Wish for the next step, or tell what is pending; None when neither is of use now.

        Changes nothing that `abandon` would have to restore. While the KV cache service is away only those move who
        stay inside the blocks they hold.
        """
        assert self._wishes is None, "a plan is being settled"
        if self._flight.is_full:
            return None
        if self._roster.waiting:
            self._roster.order.charge(self._roster.running)
        self._wishes = self._planner.wishes(is_kv_ready=is_kv_ready, may_admit=not self._is_stuck)
        return self._wishes.plan if self._wishes is not None else None

    def abandon(self) -> None:
        """Forget the plan that was not answered; everything in it will be wished for again."""
        self._wishes = None
        self.drain.interrupted()

    def settle(self, grants: Grants | None) -> Settlement:
        """Turn what was granted into a step. It holds exactly that. None: the plan needed no answer."""
        wishes, self._wishes = self._wishes, None
        assert wishes is not None, "nothing was planned"
        if grants is not None:
            self._grant_log.note(wishes.plan.step, grants)
        settlement = self._dispatch.settle(wishes, grants)
        self._is_stuck = not (settlement.step or settlement.preempted or settlement.finished)
        return settlement

    def update(self, result: StepResult) -> Update:
        """Take a step's result: ids for the placeholders, or a fault that sends its requests back to the queue.

        A result that was taken before changes nothing.
        """
        assert self._wishes is None, "a plan is being settled"
        if result.seq <= self._flight.acked_seq:
            return Update()
        self._is_stuck = False
        return self._arrival.take(result)

    def worker_lost(self, *, has_left: bool = False) -> tuple[list[Request], list[Request]]:
        """The worker is gone, and every block with it: (its requests, in order, to be placed anew; the poisoned).

        One that `has_left` had run what it was to run.
        """
        self._wishes = None
        poisoned = self._arrival.worker_lost(has_left=has_left)
        return self._roster.disband(), poisoned

    def declare_tables(self) -> list[DeclaredTable]:
        """Every table in use, as after the last settled plan, for opening the pool again."""
        assert self._wishes is None, "a plan is being settled"
        return [
            DeclaredTable(
                handle=request.handle,
                epoch=request.epoch,
                token_ids=tuple(request.token_ids),
                block_ids=tuple(request.block_ids),
                num_acked_tokens=request.num_acked_tokens,
                num_computed_tokens=request.num_computed_tokens,
                identity=request.identity,
            )
            for request in self._roster.running
        ]

    def next_opening(self) -> Opening:
        """The pool is about to be opened: which time that is, and what a service that restarts must know."""
        return self._grant_log.next_opening()

    def pool_reopened(self, figures: PoolFigures) -> None:
        """The pool knows the declared tables and nothing else; plans are numbered from 1 again.

        What steps in flight had reserved is withdrawn: their blocks are named by commits when they are acknowledged.
        """
        assert self._wishes is None, "a plan is being settled"
        self.figures.pool = figures
        self.drain.interrupted()
        self._roster.pending.clear()
        self._flight.renumber()
        self._is_stuck = False
        for request in self._roster.waiting:
            request.is_declared = False
        for request in self._roster.running:
            request.num_committed_ids = request.num_known_tokens
            request.num_told_tokens = request.num_computed_tokens
            request.num_committed_tokens = request.num_acked_tokens
