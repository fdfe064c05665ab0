"""The scheduler of one worker: who advances in each step and by how much, and what came of it.

Pure: it plans (`schedule`), takes the KV cache service's answer (`settle`), and takes the worker's (`update`). It never
sees text, tensors, streams or the clock. Between `schedule` and `settle` nothing else may be called but `abandon`.
"""

import itertools
from collections.abc import Sequence

from scheduler_service.core import rejection
from scheduler_service.core.arrival import Arrival
from scheduler_service.core.dispatch import Dispatch
from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import WINDOW, Flight
from scheduler_service.core.outcome import Settlement, Update
from scheduler_service.core.plan import DeclaredTable, Grants, Limits, Plan, Pool, PoolFigures, StepResult
from scheduler_service.core.planner import Planner, Wishes
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request, Status
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
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.figures = Figures()
        self._roster = Roster(policy)
        self._flight = Flight(first_seq, window)
        self._planner = Planner(self._roster, self._flight, limits=limits, pool=pool, policy=policy)
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
        """Tokens still to be computed for everybody here, hits not considered."""
        everybody = itertools.chain(self._roster.running, self._roster.waiting)
        return sum(max(0, request.num_known_tokens - request.num_computed_tokens) for request in everybody)

    @property
    def is_planning(self) -> bool:
        return self._wishes is not None

    @property
    def has_steps_in_flight(self) -> bool:
        return bool(self._flight.steps)

    @property
    def acked_seq(self) -> int:
        """The last step whose result was taken."""
        return self._flight.acked_seq

    def get(self, request_id: str) -> Request | None:
        return self._roster.by_id.get(request_id)

    def submit(self, request: Request, *, at_front: bool = False) -> bool:
        """Take a request; False if the output ids it came with already end it.

        Raises a `rejection.Rejected`, with nothing changed, for one that can never run here or finds the queue full.
        `at_front` is for requests that ran on another worker: they are owed an answer, the queue's bound included.
        """
        assert self._wishes is None, "a plan is being settled"
        if not request.num_output_tokens:
            rejection.check_fits(request, self.pool)
            rejection.check_rules(request, self.pool)
        if not at_front:
            rejection.check_queue(self.num_waiting, self.limits)
        self._roster.enter(request, max_model_len=self.pool.max_model_len, at_front=at_front)
        self._is_stuck = False
        if request.stops_here():
            self._roster.finish(request, request.status)
            return False
        return True

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

    def schedule(self, *, is_kv_ready: bool = True) -> Plan | None:
        """Wish for the next step, or tell what is pending; None when neither is of use now.

        Changes nothing that `abandon` would have to restore. While the KV cache service is away only those move who
        stay inside the blocks they hold.
        """
        assert self._wishes is None, "a plan is being settled"
        if self._flight.is_full:
            return None
        self._wishes = self._planner.wishes(is_kv_ready=is_kv_ready, may_admit=not self._is_stuck)
        return self._wishes.plan if self._wishes is not None else None

    def abandon(self) -> None:
        """Forget the plan that was not answered; everything in it will be wished for again."""
        self._wishes = None

    def settle(self, grants: Grants | None) -> Settlement:
        """Turn what was granted into a step. It holds exactly that. None: the plan needed no answer."""
        wishes, self._wishes = self._wishes, None
        assert wishes is not None, "nothing was planned"
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

    def worker_lost(self) -> tuple[list[Request], list[Request]]:
        """The worker is gone, and every block with it: (its requests, in order, to be placed anew; the poisoned)."""
        self._wishes = None
        poisoned = self._arrival.worker_lost()
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

    def pool_reopened(self, figures: PoolFigures) -> None:
        """The pool knows the declared tables and nothing else; plans are numbered from 1 again.

        What steps in flight had reserved is withdrawn: their blocks are named by commits when they are acknowledged.
        """
        assert self._wishes is None, "a plan is being settled"
        self.figures.pool = figures
        self._roster.pending.clear()
        self._flight.renumber()
        self._is_stuck = False
        for request in self._roster.waiting:
            request.is_declared = False
        for request in self._roster.running:
            request.num_committed_ids = request.num_known_tokens
            request.num_told_tokens = request.num_computed_tokens
            request.num_committed_tokens = request.num_acked_tokens
