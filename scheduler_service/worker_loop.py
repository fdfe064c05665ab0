"""Plan, ask, settle, send: the loop of one attached worker, one step ahead of it.

Whatever arrives while a plan is being settled waits in the inbox; the core is only touched between plans. Which
requests come here, and what becomes of them when the worker is gone, is the engine's.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from octavo import logs
from scheduler_service.core.outcome import Settlement
from scheduler_service.core.placement import Share, num_to_move
from scheduler_service.core.plan import Grants, Plan, StepStatus
from scheduler_service.core.progress import HOPELESS_AFTER_S, WAITS_FOR
from scheduler_service.core.rejection import Rejected
from scheduler_service.core.request import Entry, Request, Status
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.inbox import Inbox
from scheduler_service.kvcache_client import KVCacheClient, PoolLost, PoolRefused
from scheduler_service.reports import Reporter, StepRecord
from scheduler_service.watchdog import Watchdog
from scheduler_service.worker_link import WorkerLink
from scheduler_service.worker_pool import WorkerPool
from scheduler_service.worker_wire import Result

NUM_RECENT_STEPS: Final = 100  # that GetState's means are taken over

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """Hears when the pool is open, when a request is refused, when some are given up, and when none is left."""

    opened: Callable[[], None]
    rejected: Callable[[Request, Rejected], None]
    moved: Callable[[Sequence[Request]], None]
    idle: Callable[["WorkerLoop"], None]


class WorkerLoop:
    """One worker incarnation, from its first hello until it is over."""

    def __init__(
        self, link: WorkerLink, core: Scheduler, *, kvcache: KVCacheClient, reporter: Reporter, listener: Listener
    ) -> None:
        self.link = link
        self.core = core
        self.is_open = False  # its pool was opened: requests may be placed here
        self.is_draining = False  # it gets no new requests, and leaves when it has none left
        self.is_hurried = False  # it was told to leave after the steps in hand
        self.ended = asyncio.Event()  # its incarnation is over
        self.recent_step_us: deque[int] = deque(maxlen=NUM_RECENT_STEPS)
        self.recent_gap_us: deque[int] = deque(maxlen=NUM_RECENT_STEPS)
        self._kvcache = kvcache
        self._reporter = reporter
        self._listener = listener
        self._had_requests = False  # since it was last idle
        self._is_handing_over = False  # nothing is planned any more
        self._inbox = Inbox()
        self._pool = WorkerPool(link, kvcache, changed=self._inbox.wake)
        self._records: dict[int, StepRecord] = {}  # by seq: sent and not answered
        self._answered_ns = 0  # when the last step was
        self.watchdog = Watchdog(
            link.hello.worker_id,
            waits_for=lambda: self.core.waits_for(is_kv_ready=self._pool.is_open),
            ask_again=lambda: self._inbox.put(self.core.ask_again),
            give_up=lambda waits_for: self._inbox.put(partial(self._give_up, waits_for)),
        )

    @property
    def worker_id(self) -> str:
        return self.link.hello.worker_id

    @property
    def model_name(self) -> str:
        return self.link.hello.model_name

    @property
    def labels(self) -> tuple[str, str]:
        return (self.model_name, self.worker_id)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute here before a newcomer's, those in the inbox included."""
        return self.core.num_queued_tokens + self._inbox.num_tokens

    @property
    def num_requests(self) -> int:
        return self.core.num_requests + self._inbox.num_requests

    @property
    def problem(self) -> str:
        """Why a request that came here now would wait; empty when it would not, as far as is known."""
        if self._pool.is_away:
            return f"requests at worker {self.worker_id} wait for {WAITS_FOR['kvcache']}"
        stall = self.watchdog.stall
        return "" if stall is None else f"requests at worker {self.worker_id} wait for {WAITS_FOR[stall.waits_for]}"

    def submit(self, request: Request, entry: Entry) -> None:
        self._had_requests = True
        self._inbox.put_request(request, partial(self._submit, request, entry))

    def yield_waiting(self, share: Share) -> None:
        """Give up requests that wait and can move: the listener gets them."""
        self._inbox.put(partial(self._yield_waiting, share))

    def end(self, request_id: str, status: Status, detail: str = "") -> None:
        """Cancel a request, or fail it."""
        self._inbox.put(partial(self._end, request_id, status, detail))

    def result(self, result: Result) -> None:
        self._inbox.put(partial(self._take, result))

    def session_changed(self) -> None:
        """The worker came back under a new session: its pool is opened again for it."""
        self._inbox.put(self._pool.reopen)

    def kvcache_restarted(self) -> None:
        """The KV cache service may be one that does not have the pool: then it is opened there, work or no work."""
        self._inbox.put(self._pool.reopen_if_gone)

    def stop(self, *, has_left: bool = False) -> tuple[list[Request], list[Request]]:
        """The incarnation is over: take what had arrived, then give up (its requests, in order; the poisoned).

        An answer that is on its way to `run` finds it over: the tasks of a group hear of their end a moment later.
        """
        self.ended.set()
        self.core.abandon()
        self._inbox.apply()
        self._inbox.wake()
        return self.core.worker_lost(has_left=has_left)

    async def hand_over(self) -> None:
        """Plan no more, and return when the results of the steps that were sent are taken: the scheduler ends."""
        self._is_handing_over = True
        self.core.abandon()
        self._inbox.apply()
        while self._records and not self.ended.is_set():
            await self._inbox.wait()
            self._inbox.apply()

    @property
    def _is_over(self) -> bool:
        """Whether nothing is to be planned here any more."""
        return self.ended.is_set() or self._is_handing_over

    async def run(self) -> str:
        """Serve the worker until its incarnation is over; why it is."""
        async with asyncio.TaskGroup() as tasks:
            planner = tasks.create_task(self._serve(), name=f"plan-{self.worker_id}")
            silence = tasks.create_task(self.link.silence(), name=f"silence-{self.worker_id}")
            watchdog = tasks.create_task(self.watchdog.watch(), name=f"watchdog-{self.worker_id}")
            done, _ = await asyncio.wait([planner, silence], return_when=asyncio.FIRST_COMPLETED)
            planner.cancel()
            silence.cancel()
            watchdog.cancel()
        return next(iter(done)).result()

    async def _serve(self) -> str:
        """Plan whenever there is something to plan; return why this worker can have no pool."""
        try:
            while True:
                await self._advance()
                await self._inbox.wait()
        except PoolRefused as refused:
            return str(refused)

    async def _advance(self) -> None:
        """Go on until neither the core nor the inbox has anything left to do."""
        while not self._is_over:
            self._inbox.apply()
            if self._pool.is_due:
                await self._open()
                continue
            if late := self.core.expire(time.monotonic()):
                self._reporter.finished(late, self.labels)
            plan = self.core.schedule(is_kv_ready=self._pool.is_open)
            if plan is None:
                self._rest()
                return
            if not plan.needs_answer:
                self._settle(None)
            elif (grants := await self._ask(plan)) is not None and not self._is_over:
                self._settle(grants)

    async def _ask(self, plan: Plan) -> Grants | None:
        """What the KV cache service grants; None, with the plan abandoned, when the pool is lost."""
        try:
            return await self._kvcache.plan(self.link.hello, plan)
        except PoolLost as lost:
            _log.warning("pool_lost", worker_id=self.worker_id, step=plan.step, problem=str(lost))
            self.core.abandon()
            self._pool.reopen()
            return None

    async def _open(self) -> None:
        """Open the pool with the tables in use."""
        hello = self.link.hello
        figures = await self._pool.open(self.core.declare_tables(), self.core.next_opening())
        if figures is None or self._is_over:
            return
        self.watchdog.moved()
        self.core.pool_reopened(figures)
        self._pool.opened(is_current=hello is self.link.hello)
        _log.info("pool_open", worker_id=self.worker_id, incarnation=hello.incarnation, session=hello.session)
        if not self.is_open:
            self.is_open = True
            self._listener.opened()

    def _settle(self, grants: Grants | None) -> None:
        settlement: Settlement = self.core.settle(grants)
        self.core.drain.let_in(settlement.admitted, num_waiting=self.core.num_waiting, now_s=time.monotonic())
        self._reporter.admitted(settlement.admitted, self.labels)
        self._reporter.preempted(settlement.preempted, "kv_blocks")
        if settlement.step is not None and settlement.sent is not None:
            self.watchdog.moved()
            record = self._reporter.sent(settlement.sent)
            self._records[settlement.step.seq] = record
            self._reporter.metrics.batch.labels(*self.labels).observe(record.num_batch_tokens)
            self.link.send(settlement.step, self._reporter.tickets, trace_context=record.trace_context)
        self._reporter.finished(settlement.finished, self.labels)

    def _rest(self) -> None:
        """Nothing can be planned now; say so when nothing is left at all."""
        if self._had_requests and not self.num_requests:
            self._had_requests = False
            self._listener.idle(self)

    def _yield_waiting(self, share: Share) -> None:
        if self._inbox:  # a cancel may be in it: it must find its request here
            self._inbox.put(partial(self._yield_waiting, share))
            return
        movable = self.core.movable()
        num_tokens = [request.num_known_tokens for request in movable]
        moved = movable[: num_to_move(num_tokens, self.core.num_queued_tokens, share=share)]
        if moved:
            self.core.withdraw(moved)
            self._listener.moved(moved)

    def _submit(self, request: Request, entry: Entry) -> None:
        self._inbox.took(request)
        ticket = self._reporter.tickets[request.request_id]
        if ticket.trace is not None:  # counting what is ahead costs a look at every request
            ticket.queued(depth=self.core.num_waiting, tokens_ahead=self.core.num_queued_tokens)
        try:
            is_open = self.core.submit(request, entry, now_s=time.monotonic())
        except Rejected as rejected:
            self._listener.rejected(request, rejected)
            return
        if not is_open:
            self._reporter.finished([request], self.labels)

    def _end(self, request_id: str, status: Status, detail: str) -> None:
        request = self.core.end(request_id, status, detail)
        if request is not None:
            self._reporter.finished([request], self.labels)

    def _take(self, result: Result) -> None:
        seq = result.core.seq
        record = self._records.pop(seq, None)
        if record is None:
            return  # sent twice, or of a scheduler before this one
        update = self.core.update(result.core)
        self.watchdog.moved()
        self.link.taken(seq)
        self._reporter.answered(record, self.core)
        if result.core.status is StepStatus.OK:
            self._count(result, record)
        else:
            _log.warning("step_failed", worker_id=self.worker_id, seq=seq, status=result.core.status.value,
                         message=result.core.message)  # fmt: skip
        self.core.drain.brought(update.outputs, now_s=time.monotonic())
        self._reporter.tokens(update.outputs, result.logprobs, self.labels)
        self._reporter.preempted(update.preempted, "fault")
        self._reporter.finished(update.finished, self.labels)

    def _give_up(self, waits_for: str) -> None:
        """Nothing will come of waiting: everybody who has waited for as long ends."""
        for request in (*self.core.running, *self.core.waiting):
            request.waited_for = waits_for
            if time.monotonic() - request.arrival >= HOPELESS_AFTER_S:
                self._end(request.request_id, Status.ERROR, "NO_PROGRESS")

    def _count(self, result: Result, record: StepRecord) -> None:
        now_ns, began_ns = time.monotonic_ns(), max(record.sent_ns, self._answered_ns)
        self._answered_ns = now_ns
        budget = self.core.limits.max_num_batched_tokens
        self.core.drain.step(record.num_batch_tokens, seconds=(now_ns - began_ns) / 1e9, budget=budget)
        self.recent_step_us.append(result.busy_us)
        self.recent_gap_us.append(result.gap_us)
        self._reporter.metrics.step.labels(*self.labels).observe(result.busy_us / 1e6)
