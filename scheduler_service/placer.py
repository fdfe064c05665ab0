"""Requests that wait for a worker, and the choice of one: the one with the least left to compute before them.

A request is placed once, at submit, and again only when its worker is gone or gave it up before it had begun. What the
workers hold of its prompt is asked off the step path, for everybody who waits at once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core import rejection
from scheduler_service.core.backlog import Backlog
from scheduler_service.core.placement import Candidate, choose
from scheduler_service.core.request import Entry, Request
from scheduler_service.kvcache_client import KVCacheClient
from scheduler_service.tickets import Ticket
from scheduler_service.worker_loop import WorkerLoop


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A request without a worker, and how it enters the next one's queue."""

    request: Request
    entry: Entry


class Placer:
    """Places requests as soon as there is a worker that may take them."""

    def __init__(
        self, kvcache: KVCacheClient, tickets: Mapping[str, Ticket], open_loops: Callable[[], Sequence[WorkerLoop]]
    ) -> None:
        self._kvcache = kvcache
        self._tickets = tickets
        self._open_loops = open_loops
        self._unplaced: deque[Unplaced] = deque()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return sum(not waiting.request.is_finished for waiting in self._unplaced)

    @property
    def backlog(self) -> Backlog:
        """How much waits for a worker."""
        backlog = Backlog()
        for waiting in self._unplaced:
            if not waiting.request.is_finished:
                backlog.add(waiting.request)
        return backlog

    def add(self, request: Request, entry: Entry) -> None:
        self._unplaced.append(Unplaced(request, entry))
        self.look_again()

    def put_back(self, requests: Sequence[Request], entry: Entry) -> None:
        """Requests that had a worker, in order: before everybody else."""
        self._unplaced.extendleft(Unplaced(request, entry) for request in reversed(requests))
        self.look_again()

    def look_again(self) -> None:
        """A worker or a request has come."""
        self._changed.set()

    async def run(self) -> None:
        """Place, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._unplaced and self._open_loops():
                batch = list(self._unplaced)
                self._unplaced.clear()
                await self._place(batch)

    async def _place(self, batch: list[Unplaced]) -> None:
        matches: list[dict[str, int]] = [{} for _ in batch]
        if _is_match_wanted(batch, self._open_loops()):
            matches = await self._kvcache.match([(w.request.token_ids, w.request.identity) for w in batch])
        loops = self._open_loops()
        if not loops:  # gone while we asked
            self._unplaced.extendleft(reversed(batch))
            return
        for waiting, match in _in_order(zip(batch, matches, strict=True)):
            if not waiting.request.is_finished:
                loop = self._choose(waiting.request, loops, match)
                waiting.request.num_matched_tokens = match.get(loop.worker_id, 0)
                self._hand_over(waiting, loop)

    def _choose(self, request: Request, loops: Sequence[WorkerLoop], match: Mapping[str, int]) -> WorkerLoop:
        if len(loops) == 1:
            return loops[0]
        loops = [loop for loop in loops if rejection.may_fit(request, loop.core.pool)] or loops
        candidates = [
            Candidate(
                worker_id=loop.worker_id,
                num_uncached_tokens=request.num_known_tokens - match.get(loop.worker_id, 0),
                num_queued_tokens=loop.num_queued_tokens,
                num_requests=loop.num_requests,
            )
            for loop in loops
        ]
        chosen = choose(candidates, (random.random(), random.random()))
        return next(loop for loop in loops if loop.worker_id == chosen.worker_id)

    def _hand_over(self, waiting: Unplaced, loop: WorkerLoop) -> None:
        ticket = self._tickets[waiting.request.request_id]
        ticket.worker_id = loop.worker_id
        if ticket.no_worker is not None:
            ticket.no_worker.cancel()
            ticket.no_worker = None
        loop.submit(waiting.request, waiting.entry)


def _is_match_wanted(batch: Sequence[Unplaced], loops: Sequence[WorkerLoop]) -> bool:
    """Whether somebody needs to know what is left to compute: the choice of a worker, a deadline, a queue's bound."""
    has_bound = any(loop.core.limits.max_queued_tokens for loop in loops)
    return len(loops) > 1 or has_bound or any(waiting.request.deadline_s is not None for waiting in batch)


def _in_order(batch: Iterable[tuple[Unplaced, dict[str, int]]]) -> list[tuple[Unplaced, dict[str, int]]]:
    """Those that lost a worker last to first, because each goes before everybody already there; then the others."""
    pairs = list(batch)
    back = [pair for pair in pairs if pair[0].entry is Entry.BACK]
    return back[::-1] + [pair for pair in pairs if pair[0].entry is not Entry.BACK]
