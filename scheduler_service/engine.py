"""Requests from submit to finish; which worker serves one is the placer's choice."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from octavo import errors, logs, loop_clock
from octavo.errors import Failed, Failure
from scheduler_service import failures, spans
from scheduler_service.core import rejection
from scheduler_service.core.drain_rate import DrainRate
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import Rejected
from scheduler_service.core.request import Entry, Request, Status
from scheduler_service.gateway_session import GatewaySession
from scheduler_service.gateways import Gateways
from scheduler_service.kvcache_client import KVCacheClient
from scheduler_service.placer import Placer
from scheduler_service.reports import Reporter
from scheduler_service.serving import Model, ServingState
from scheduler_service.tickets import Submission, Ticket
from scheduler_service.workers import Owner, Workers

HANDOVER_S: Final = 0.5  # at the end, for the results of the steps in hand; what comes later is computed again

_log = logs.get(__name__)


@asynccontextmanager
async def running(
    kvcache: KVCacheClient, reporter: Reporter, *, limits: Limits, policy: Policy
) -> AsyncIterator["Engine"]:
    """An engine that works while the block runs."""
    async with asyncio.TaskGroup() as tasks:
        engine = Engine(kvcache, reporter, limits=limits, policy=policy, tasks=tasks)
        try:
            yield engine
        finally:
            engine.stop()


class Engine:
    """All open requests of this scheduler."""

    def __init__(
        self,
        kvcache: KVCacheClient,
        reporter: Reporter,
        *,
        limits: Limits,
        policy: Policy,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.incarnation = secrets.randbits(63)
        self.started_s = time.monotonic()
        self.kvcache = kvcache
        self._reporter = reporter
        self._tickets = reporter.tickets
        self._limits = limits
        self._is_draining = False
        self._is_handing_over = False
        owner = Owner(
            rejected=self._rejected,
            lost=self._lost,
            moved=self._moved,
            changed=self._workers_changed,
            is_somebody_waiting=lambda: self.num_unplaced > 0,
        )
        self.workers = Workers(
            kvcache,
            reporter,
            owner,
            limits=limits,
            policy=policy,
            scheduler_incarnation=self.incarnation,
            tasks=tasks,
        )
        self._placer = Placer(kvcache, reporter.tickets, lambda: self.workers.promising_loops)
        self._placing = tasks.create_task(self._placer.run(), name="placer")
        self.gateways = Gateways(
            serving=self.serving, unclaimed=lambda ticket: self._end(ticket, Status.ABORTED), tasks=tasks
        )

    @property
    def num_open_requests(self) -> int:
        return len(self._tickets)

    @property
    def num_unplaced(self) -> int:
        return len(self._placer)

    def submit(self, gateway: GatewaySession, submission: Submission) -> None:
        """Take a request, or tell the gateway why not. A live one is attached: its missing tokens are sent again."""
        if self._is_handing_over:
            return
        live = gateway.tickets.get(submission.request_num)
        if live is not None:
            gateway.attach_again(live, len(submission.output_token_ids))
            return
        refusal = self._refusal(gateway)
        if refusal is not None:
            spans.record_refusal(submission.trace_context, refusal.reason, refusal.message)
            self._reporter.metrics.rejected.labels(refusal.reason).inc()
            gateway.rejected(submission.request_num, refusal)
            return
        ticket = self._open(gateway, submission)
        if submission.remaining_s is not None:
            ticket.deadline = asyncio.get_running_loop().call_later(
                max(0.0, submission.remaining_s), self._end, ticket, Status.ERROR, "DEADLINE_EXCEEDED"
            )
        if not self.workers.open_loops:
            self._wait_for_worker(ticket)
            if not submission.was_submitted and not self._may_wait(ticket.request):
                return
        self._placer.add(ticket.request, Entry.MOVED if submission.was_submitted else Entry.NEW)
        self.workers.hurry()

    def cancel(self, gateway: GatewaySession, request_num: int, reason: str) -> None:
        """It is in no later plan; unknown numbers are ignored."""
        ticket = gateway.tickets.get(request_num)
        if ticket is not None:
            _log.info("request_cancelled", request_id=ticket.request_id, reason=reason)
            self._end(ticket, Status.ABORTED)

    def connect(self, gateway_id: str, incarnation: int, tokenizer_digest: bytes) -> GatewaySession:
        """A gateway's stream has come; the same incarnation keeps its requests. Raises Failed when the process ends."""
        if self._is_handing_over:
            raise Failed(failures.draining())
        return self.gateways.connect(gateway_id, incarnation, tokenizer_digest)

    def serving(self, gateway: GatewaySession | None = None) -> ServingState:
        """What a gateway, or anybody, is told."""
        loops = self.workers.open_loops
        problem = self._problem(gateway)
        model = None
        if loops:
            vocab_size = min(loop.link.hello.vocab_size for loop in loops)
            longest = min(loop.core.pool.max_model_len for loop in loops)
            model = Model(name=loops[0].model_name, max_model_len=longest, vocab_size=vocab_size)
        return ServingState(
            scheduler_incarnation=self.incarnation,
            is_ready=not problem,
            reason=problem,
            model=model,
            is_draining=self._is_handing_over,
            is_refusing=self._is_draining,
            num_blocks=sum(loop.core.pool.num_blocks - 1 for loop in loops),
            block_size=loops[0].core.pool.block_size if loops else 0,
        )

    async def drain(self, limit_s: float | None = None) -> int:
        """Refuse new requests; return how many are open when none is left or the limit has passed."""
        self._is_draining = True
        self.gateways.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._reporter.all_closed()
        return self.num_open_requests

    async def hand_over(self) -> None:
        """The process ends: leave what is open to the next scheduler, which gets it from the gateways.

        What the steps in hand bring is still delivered; then every stream ends in good order.
        """
        self._is_draining = self._is_handing_over = True
        self._placing.cancel()
        self.gateways.tell()
        await self.workers.hand_over(HANDOVER_S)
        self._reporter.let_go()
        self.gateways.close()
        _log.info("handed_over", num_requests=self.num_open_requests, num_gateways=len(self.gateways))

    def stop(self) -> None:
        """End every task."""
        self._placing.cancel()
        self.workers.stop()
        self.gateways.stop()
        for ticket in self._tickets.values():
            ticket.stop_timers()

    def _open(self, gateway: GatewaySession, submission: Submission) -> Ticket:
        ticket = Ticket(
            request=submission.request(gateway.request_id(submission.request_num), time.monotonic()),
            submission=submission,
            gateway=gateway,
            trace=spans.trace_of(submission.trace_context),
        )
        ticket.begin_wait()
        gateway.attach(ticket)
        self._reporter.opened(ticket)
        return ticket

    def _refusal(self, gateway: GatewaySession) -> Failure | None:
        if self._is_draining:
            return failures.draining()
        if self._has_other_tokenizer(gateway):
            return failures.tokenizer_mismatch(self._problem(gateway))
        return None

    def _may_wait(self, request: Request) -> bool:
        """Whether the queue of those without a worker takes it; if not, its gateway is told so."""
        try:
            rejection.check_queue(request, self._placer.backlog, self._limits, drain=DrainRate(), now_s=request.arrival)
        except Rejected as rejected:
            self._rejected(request, rejected)
            return False
        return True

    def _problem(self, gateway: GatewaySession | None) -> str:
        """Why requests cannot be served; empty when they can."""
        if self._is_draining:
            return "draining"
        if gateway is not None and self._has_other_tokenizer(gateway):
            return (
                f"tokenizer_digest of gateway {gateway.gateway_id} differs from that of the attached workers; "
                "start it with their --model"
            )
        if loops := self.workers.open_loops:
            problems = [loop.problem for loop in loops]
            return problems[0] if all(problems) else ""
        if any(not loop.is_draining for loop in self.workers.loops):
            return "waiting for the KV cache service"
        return "every worker is draining" if self.workers.loops else "no worker is attached"

    def _has_other_tokenizer(self, gateway: GatewaySession) -> bool:
        digests = {loop.link.hello.fingerprint.tokenizer_digest for loop in self.workers.loops}
        return bool(gateway.tokenizer_digest) and bool(digests) and gateway.tokenizer_digest not in digests

    def _end(self, ticket: Ticket, status: Status, detail: str = "") -> None:
        """End a request wherever it is."""
        if ticket.worker_id is not None:
            self.workers.get(ticket.worker_id).end(ticket.request_id, status, detail)
            return
        ticket.request.enter(status)
        ticket.request.finish_detail = detail
        self._reporter.finished([ticket.request], None)

    def _rejected(self, request: Request, why: Rejected) -> None:
        failure = errors.from_exception(why, failures.STATUSES)
        assert failure is not None, f"{type(why).__name__} has no status"
        if not request.is_finished:
            request.enter(Status.REJECTED)
        self._reporter.rejected(request, failure)

    def _lost(self, requests: Sequence[Request]) -> None:
        """A worker is gone: its requests are placed again, with what they have."""
        for request in requests:
            ticket = self._tickets[request.request_id]
            ticket.worker_id = None
            if request.status is Status.PREEMPTED:
                ticket.preempted("worker_lost", request.num_known_tokens)
            self._wait_for_worker(ticket)
        self._placer.put_back(requests, Entry.BACK)

    def _moved(self, requests: Sequence[Request]) -> None:
        """A worker gave up requests that had not begun: they are placed again."""
        for request in requests:
            self._tickets[request.request_id].worker_id = None
        self._placer.put_back(requests, Entry.MOVED)

    def _workers_changed(self) -> None:
        if not self.workers.open_loops:
            for ticket in self._tickets.values():
                if ticket.worker_id is None:  # also those whose worker went while one was being chosen
                    self._wait_for_worker(ticket)
        self._placer.look_again()
        self.workers.hurry()
        self.gateways.tell()

    def _wait_for_worker(self, ticket: Ticket) -> None:
        ticket.request.waited_for = "loading"
        if ticket.no_worker is None:
            ticket.no_worker = loop_clock.call_later(self._limits.no_worker_timeout_s, self._without_worker, ticket)

    def _without_worker(self, ticket: Ticket) -> None:
        ticket.no_worker = None
        if self.workers.loops:  # one is attached and only waits for its pool
            self._wait_for_worker(ticket)
        else:
            self._end(ticket, Status.ERROR, "NO_WORKER")
