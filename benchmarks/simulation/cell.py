"""All workers and requests on one clock: arrivals, placement, steps, and the next turn of a conversation."""

import heapq
import itertools
import random
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.simulation.kv_side import KVSide
from benchmarks.simulation.worker import BLOCK_SIZE, CpuTime, Executed, Setting, SimulatedWorker
from benchmarks.simulation.workload import Conversation
from scheduler_service.core.placement import Candidate, choose
from scheduler_service.core.plan import Identity
from scheduler_service.core.request import Request, StopRules


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """One turn of one conversation, and when its tokens came."""

    conversation: Conversation
    turn: int
    request: Request
    arrived_s: float
    token_at_s: list[float] = field(default_factory=list)
    is_waiting: bool = True  # never let in so far
    ended_s: float | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_at_s[0] - self.arrived_s

    @property
    def itls_s(self) -> Iterable[float]:
        return (after - before for before, after in itertools.pairwise(self.token_at_s))

    def next_token(self) -> int:
        """What the model answers next; it ends by max_tokens, and tokens after that are of no interest."""
        answer = self.conversation.turns[self.turn].output_tokens
        position = self.request.num_output_tokens
        return answer[position] if position < len(answer) else 0


class Cell:
    """One scheduler, one KV cache service and their workers; `run` serves a workload to its end."""

    def __init__(self, num_workers: int, setting: Setting, *, seed: int = 0) -> None:
        self.cpu = CpuTime()
        self.served: list[Served] = []
        self.num_tokens = 0  # computed
        self.tokens_by_tenant: dict[str, int] = {}  # computed while every tenant had requests waiting
        self.now_s = 0.0
        self._kv_side = KVSide(block_size=BLOCK_SIZE)
        self.workers = [SimulatedWorker(f"w{n}", setting, self._kv_side, self.cpu) for n in range(num_workers)]
        self._by_id = {worker.worker_id: worker for worker in self.workers}
        self._rng = random.Random(f"{seed}/placement")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()
        self._open: dict[str, Served] = {}
        self._num_waiting: dict[str, int] = {}  # by tenant

    def run(self, workload: Iterable[Conversation]) -> None:
        """Serve all of it."""
        for conversation in workload:
            self._num_waiting.setdefault(conversation.tenant, 0)
            self._at(conversation.start_s, partial(self._ask, conversation, 0, conversation.system_tokens))
        while self._events:
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()
        assert not self._open, f"{len(self._open)} requests did not end: {list(self._open)[:8]}"

    def _at(self, moment_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_s, next(self._counter), happen))

    def _ask(self, conversation: Conversation, turn: int, history: "array[int]") -> None:
        said = conversation.turns[turn]
        prompt = [*history, *said.user_tokens]
        request = Request(
            identity=Identity(request_id=f"c{conversation.number}.{turn}", tenant=conversation.tenant),
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            rules=StopRules(max_tokens=len(said.output_tokens)),
            arrival=self.now_s,
        )
        served = Served(conversation=conversation, turn=turn, request=request, arrived_s=self.now_s)
        self._open[request.request_id] = served
        self._num_waiting[conversation.tenant] += 1
        self.served.append(served)
        worker = self._place(request)
        worker.core.submit(request)
        self._plan(worker)

    def _place(self, request: Request) -> SimulatedWorker:
        """As the scheduler's placer does, and nobody else has asked meanwhile."""
        began = time.thread_time_ns()
        if len(self.workers) == 1:
            return self.workers[0]
        matches = self._kv_side.match(request.token_ids, request.identity)
        candidates = [
            Candidate(
                worker_id=worker.worker_id,
                num_uncached_tokens=request.num_known_tokens - matches[worker.worker_id],
                num_queued_tokens=worker.core.num_queued_tokens,
                num_requests=worker.core.num_requests,
            )
            for worker in self.workers
        ]
        chosen = choose(candidates, (self._rng.random(), self._rng.random()))
        self.cpu.placement_us.append((time.thread_time_ns() - began) / 1e3)
        return self._by_id[chosen.worker_id]

    def _plan(self, worker: SimulatedWorker) -> None:
        planned = worker.plan(self.now_s)
        for step in planned.steps:
            self._at(step.end_s, partial(self._done, worker, step))
        for request in planned.admitted:
            self._wait_no_more(self._open[request.request_id])
        self._end(planned.finished)

    def _done(self, worker: SimulatedWorker, step: Executed) -> None:
        sent = step.sent
        self._count(sent.requests, sent.num_tokens)
        rows = zip(sent.requests, sent.is_sampling, strict=True)
        update = worker.update(sent, [self._next_token(request) for request, is_sampling in rows if is_sampling])
        for output in update.outputs:
            if output.token_ids:
                self._open[output.request.request_id].token_at_s.append(self.now_s)
        self._end(update.finished)
        self._plan(worker)

    def _next_token(self, request: Request) -> int:
        served = self._open.get(request.request_id)
        return served.next_token() if served is not None else 0

    def _count(self, requests: list[Request], num_tokens: list[int]) -> None:
        self.num_tokens += sum(num_tokens)
        if not all(self._num_waiting.values()):
            return
        for request, num in zip(requests, num_tokens, strict=True):
            tenant = request.identity.tenant
            self.tokens_by_tenant[tenant] = self.tokens_by_tenant.get(tenant, 0) + num

    def _end(self, requests: Iterable[Request]) -> None:
        """Requests that are over; a conversation goes on after a while."""
        for request in requests:
            served = self._open.pop(request.request_id)
            served.ended_s = self.now_s
            self._wait_no_more(served)
            conversation, following = served.conversation, served.turn + 1
            if following < len(conversation.turns) and request.num_output_tokens:
                history = array("H", request.token_ids)
                think_s = conversation.turns[following].think_s
                self._at(self.now_s + think_s, partial(self._ask, conversation, following, history))

    def _wait_no_more(self, served: Served) -> None:
        if served.is_waiting:
            served.is_waiting = False
            self._num_waiting[served.conversation.tenant] -= 1
