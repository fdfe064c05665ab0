"""The attached workers: who may attach, which of them are open, and when a worker's incarnation is over.

An incarnation that is over stays so: its pool is closed, its worker is told to begin a new one, its requests go back.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from octavo import logs, loop_clock
from octavo.client import retry_pause_s
from octavo.errors import Failed
from scheduler_service import failures
from scheduler_service.core import placement
from scheduler_service.core.placement import Load, Share
from scheduler_service.core.places import Places
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import Rejected
from scheduler_service.core.request import Request
from scheduler_service.kvcache_client import KVCacheClient
from scheduler_service.reports import Reporter
from scheduler_service.worker_core import scheduler_of
from scheduler_service.worker_hello import Hello
from scheduler_service.worker_link import Stream, WorkerLink, closed
from scheduler_service.worker_loop import Listener, WorkerLoop

NUM_REMEMBERED: Final = 256  # incarnations that are over
CLOSE_TRIES: Final = 30
REDIAL_S: Final = 0.75  # in which a living worker whose stream broke dials again; it begins after 0.1 s

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whoever owns the requests: hears when one is refused, when a worker lost some or gave some up before they had
    begun, and when workers come or go.
    """

    rejected: Callable[[Request, Rejected], None]
    lost: Callable[[Sequence[Request]], None]
    moved: Callable[[Sequence[Request]], None]
    changed: Callable[[], None]
    is_somebody_waiting: Callable[[], bool]  # for a worker


@dataclass(frozen=True, slots=True)
class Attached:
    """One stream of a worker; without a loop it only says that the incarnation is over."""

    stream: Stream
    loop: WorkerLoop | None = None


class Workers:
    """By worker id, one incarnation each."""

    def __init__(
        self,
        kvcache: KVCacheClient,
        reporter: Reporter,
        owner: Owner,
        *,
        limits: Limits,
        policy: Policy,
        scheduler_incarnation: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._kvcache = kvcache
        self._reporter = reporter
        self._owner = owner
        self._limits = limits
        self._places = Places()  # of requests that were refused for the time being, by whichever worker
        self.policy = policy
        self._scheduler_incarnation = scheduler_incarnation
        self._tasks = tasks
        self._loops: dict[str, WorkerLoop] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._listener = Listener(opened=self._opened, rejected=owner.rejected, moved=owner.moved, idle=self._idle)
        self._is_released = False
        self._over: deque[tuple[str, int]] = deque(maxlen=NUM_REMEMBERED)
        self._following = tasks.create_task(self._follow_kvcache(), name="follow-kvcache")

    @property
    def loops(self) -> Sequence[WorkerLoop]:
        """Everybody who is attached."""
        return list(self._loops.values())

    @property
    def open_loops(self) -> Sequence[WorkerLoop]:
        """Those that may be given requests."""
        return [loop for loop in self._loops.values() if loop.is_open and not loop.is_draining]

    @property
    def promising_loops(self) -> Sequence[WorkerLoop]:
        """Those of the open ones where a request would not wait for somebody who is away; all if there are none."""
        open_loops = self.open_loops
        return [loop for loop in open_loops if not loop.problem] or open_loops

    def get(self, worker_id: str) -> WorkerLoop:
        return self._loops[worker_id]

    def attach(self, hello: Hello, kept_seqs: Sequence[int]) -> Attached:
        """Take a worker in, or take it back with the results in `kept_seqs`. Raises Failed when it may not be."""
        if self._is_released:
            raise Failed(failures.draining())
        loop = self._loops.get(hello.worker_id)
        if loop is not None and loop.link.hello.incarnation == hello.incarnation:
            return self._resume(loop, hello, kept_seqs)
        if (hello.worker_id, hello.incarnation) in self._over:
            return _refused("this incarnation was declared dead")
        self._check_fingerprint(hello)
        if loop is not None:
            self.lose(loop, "its worker came back with a new incarnation")
        return self._begin(hello)

    def drain(self, loop: WorkerLoop) -> None:
        """Give a worker no new requests; tell it to leave when it has none left. Said again when asked again."""
        if not loop.is_draining:
            loop.is_draining = True
            _log.info("worker_draining", worker_id=loop.worker_id, num_requests=loop.num_requests)
            self._owner.changed()
            self._balance()
        if not loop.num_requests or loop.is_hurried:
            loop.link.drain()
        self.hurry()

    def hurry(self) -> None:
        """If all workers drain while somebody waits for one, they leave after the steps in hand: no long answer holds
        everybody else up until it is finished. What they have goes on with the next worker.
        """
        loops = self.loops
        if loops and all(loop.is_draining for loop in loops) and self._owner.is_somebody_waiting():
            for loop in loops:
                if not loop.is_hurried:
                    loop.is_hurried = True
                    loop.link.drain()

    async def drained(self, worker_id: str, limit_s: float | None) -> int:
        """Drain a worker; return how many requests it has when it has left or the limit has passed."""
        loop = self._loops.get(worker_id)
        if loop is None:
            raise failures.unknown_worker(worker_id, list(self._loops))
        self.drain(loop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await loop.ended.wait()
        return loop.num_requests

    def stream_ended(self, loop: WorkerLoop, stream: Stream) -> None:
        """A dead worker's connection breaks at once, and so may a living one's. Where another worker can go on with its
        requests they wait REDIAL_S for it; where none can, as long as for one that is silent.
        """
        loop_clock.call_later(REDIAL_S, self._lose_unless_back, loop, stream)

    def lose(self, loop: WorkerLoop, reason: str, *, has_left: bool = False) -> None:
        """An incarnation is over, by the worker's own wish or without. Harmless if it was before."""
        hello = loop.link.hello
        if self._loops.get(hello.worker_id) is not loop:
            return
        del self._loops[hello.worker_id]
        self._runs.pop(hello.worker_id).cancel()
        self._over.append((hello.worker_id, hello.incarnation))
        requests, poisoned = loop.stop(has_left=has_left)
        if has_left:
            loop.link.release()
        else:
            loop.link.close(reason)
        event, say = ("worker_left", _log.info) if has_left else ("worker_lost", _log.warning)
        say(
            event, worker_id=hello.worker_id, incarnation=hello.incarnation, reason=reason,
            num_requests=len(requests),
        )  # fmt: skip
        self._reporter.finished(poisoned, loop.labels)
        self._owner.lost(requests)
        self._owner.changed()
        closing = self._tasks.create_task(self._close_pool(hello), name=f"close-{hello.worker_id}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def hand_over(self, limit_s: float) -> None:
        """The process ends: take no worker and plan nothing any more, wait that long for the results of the steps that
        were sent, and end every worker's stream in good order. Workers keep the results that come later.
        """
        self._is_released = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                for loop in self._loops.values():
                    tasks.create_task(loop.hand_over(), name=f"hand-over-{loop.worker_id}")
        for loop in self._loops.values():
            loop.ended.set()
            loop.link.release()

    def stop(self) -> None:
        """End every task."""
        self._following.cancel()
        for task in (*self._runs.values(), *self._closing):
            task.cancel()

    async def _follow_kvcache(self) -> None:
        """Open pools again, for ever, when the service has restarted: it forgets soon what nobody claims."""
        while True:
            await self._kvcache.restarted()
            for loop in self.loops:
                loop.kvcache_restarted()

    def _begin(self, hello: Hello) -> Attached:
        link = WorkerLink(hello, scheduler_incarnation=self._scheduler_incarnation)
        core = scheduler_of(hello, self._limits, policy=self.policy, places=self._places)
        loop = WorkerLoop(link, core, kvcache=self._kvcache, reporter=self._reporter, listener=self._listener)
        self._loops[hello.worker_id] = loop
        self._runs[hello.worker_id] = self._tasks.create_task(self._run(loop), name=f"worker-{hello.worker_id}")
        self._reporter.metrics.preset(*loop.labels)
        _log.info(
            "worker_attached", worker_id=hello.worker_id, incarnation=hello.incarnation, session=hello.session,
            model=hello.model_name, num_blocks=hello.num_blocks,
        )  # fmt: skip
        self._owner.changed()
        return Attached(link.begin(is_new_here=hello.session > 1), loop)

    def _resume(self, loop: WorkerLoop, hello: Hello, kept_seqs: Sequence[int]) -> Attached:
        known = loop.link.hello.session
        if hello.session <= known:
            raise failures.stale_session(hello, known)
        missing = loop.link.missing_result(hello, kept_seqs)
        if missing is not None:
            reason = f"it came back without the result of step {missing}"
            self.lose(loop, reason)
            return _refused(reason)
        stream = loop.link.resume(hello, acked_seq=loop.core.acked_seq)
        loop.session_changed()
        _log.info("worker_resumed", worker_id=hello.worker_id, session=hello.session)
        return Attached(stream, loop)

    def _lose_unless_back(self, loop: WorkerLoop, stream: Stream) -> None:
        has_others = any(other is not loop for other in self.open_loops)
        if has_others and loop.link.is_current(stream) and not self._is_released:
            self.lose(loop, f"its stream broke, and it has not dialled again for {REDIAL_S:g} s")

    def _opened(self) -> None:
        self._owner.changed()
        self._balance()

    def _idle(self, loop: WorkerLoop) -> None:
        if loop.is_draining:
            loop.link.drain()
        else:
            self._balance()

    def _balance(self) -> None:
        """Requests that have not begun go from workers that drain, and from the longest queue to one that is idle."""
        open_loops = self.open_loops
        if not open_loops:
            return
        for loop in self._loops.values():
            if loop.is_draining:
                loop.yield_waiting(Share.ALL)
        donor = placement.donor([_load(loop) for loop in open_loops])
        if donor is not None:
            self._loops[donor.worker_id].yield_waiting(Share.HALF)

    async def _run(self, loop: WorkerLoop) -> None:
        reason = await loop.run()
        self.lose(loop, reason)

    def _check_fingerprint(self, hello: Hello) -> None:
        """All workers must hash alike and serve the same model; the same worker's next life may differ."""
        for other in self._loops.values():
            theirs = other.link.hello
            name = hello.fingerprint.difference(theirs.fingerprint)
            if theirs.worker_id != hello.worker_id and name is not None:
                raise failures.fingerprint_mismatch(hello, theirs, name)

    async def _close_pool(self, hello: Hello) -> None:
        """Tell the KV cache service, now or when it is back; opening the next incarnation's pool says the same."""
        for attempt in range(CLOSE_TRIES):
            if await self._kvcache.close_pool(hello):
                return
            await asyncio.sleep(retry_pause_s(attempt))
        _log.warning("pool_not_closed", pool_id=hello.worker_id, num_tries=CLOSE_TRIES)


def _refused(reason: str) -> Attached:
    """Only says that an incarnation is over."""
    stream = Stream()
    stream.put(closed(reason))
    stream.close()
    return Attached(stream)


def _load(loop: WorkerLoop) -> Load:
    return Load(
        worker_id=loop.worker_id,
        num_requests=loop.num_requests,
        num_waiting=loop.core.num_waiting,
        num_queued_tokens=loop.num_queued_tokens,
    )
