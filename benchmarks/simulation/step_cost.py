"""What a step costs in the two cores, in processor time: real cores, and a worker that only makes up tokens.

Requests stand at different places of their blocks, as they do in a server, so that every plan has some grows with a
new block. The window is two steps, as in reality: a step is planned while the one before it is not answered.
"""

import gc
import random
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.simulation.kv_side import KVSide, grants, kv_plan
from scheduler_service.core.plan import Grants, Identity, Limits, Plan, Pool, StepResult
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request, StopRules
from scheduler_service.core.scheduler import Scheduler

BLOCK_SIZE = 16
NUM_TOKEN_IDS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Who runs, who waits, and how large the pool is."""

    num_running: int = 256
    num_waiting: int = 0  # behind a full batch: they stay there
    num_blocks: int = 65_536
    prompt_tokens: int = 512  # at most; the least is half of it
    num_admissions: int = 0  # requests that end, and new ones that come, in every step
    policy: Policy = Policy.FCFS


@dataclass(slots=True, kw_only=True)
class StepCost:
    """Microseconds of single steps."""

    schedule_us: list[float] = field(default_factory=list)
    settle_us: list[float] = field(default_factory=list)
    update_us: list[float] = field(default_factory=list)
    kv_us: list[float] = field(default_factory=list)  # of plans that were asked

    @property
    def scheduler_us(self) -> list[float]:
        """Schedule, settle and update of one step together."""
        parts = zip(self.schedule_us, self.settle_us, self.update_us, strict=True)
        return [sum(step) for step in parts]


class Decoding:
    """A scheduler core in a steady state. Whoever drives it answers the plans that it yields."""

    def __init__(self, scene: Scene, *, seed: int = 0) -> None:
        self.cost = StepCost()
        self._scene = scene
        self._rng = random.Random(seed)
        self.core = Scheduler(
            pool=Pool(num_blocks=scene.num_blocks, block_size=BLOCK_SIZE, max_model_len=1 << 20),
            limits=Limits(max_num_batched_tokens=1 << 16, max_num_seqs=scene.num_running, max_queue_len=1 << 20),
            policy=scene.policy,
        )
        self._num_made = 0
        self._sent: deque[tuple[int, int]] = deque()  # seq, tokens it will bring
        self._open: deque[str] = deque()

    def start(self) -> Generator[Plan, Grants, None]:
        """Let everybody in, then decode for a while."""
        for _ in range(self._scene.num_running + self._scene.num_waiting):
            self._submit()
        while len(self.core.running) < self._scene.num_running:
            yield from self.step()
        for _ in range(2 * BLOCK_SIZE):
            yield from self.step()
        self.cost = StepCost()

    def renew(self) -> None:
        """The oldest end, and as many new ones come."""
        for _ in range(self._scene.num_admissions):
            self.core.abort(self._open.popleft())
            self._submit()

    def step(self) -> Generator[Plan, Grants, None]:
        """Plan until the window is full, then take the oldest result."""
        clock, cost = time.thread_time_ns, self.cost
        schedule_ns = settle_ns = 0
        while True:
            began = clock()
            plan = self.core.schedule()
            schedule_ns += clock() - began
            if plan is None:
                break
            answer = (yield plan) if plan.needs_answer else None
            began = clock()
            settlement = self.core.settle(answer)
            settle_ns += clock() - began
            if settlement.sent is not None:
                self._sent.append((settlement.sent.seq, settlement.sent.is_sampling.count(True)))
        seq, num_tokens = self._sent.popleft()
        result = StepResult(seq=seq, token_ids=[self._rng.randrange(NUM_TOKEN_IDS) for _ in range(num_tokens)])
        began = clock()
        self.core.update(result)
        cost.update_us.append((clock() - began) / 1e3)
        cost.schedule_us.append(schedule_ns / 1e3)
        cost.settle_us.append(settle_ns / 1e3)

    def _submit(self) -> None:
        most = self._scene.prompt_tokens
        num_tokens = self._rng.randint(max(1, most // 2), most)
        prompt = [self._rng.randrange(NUM_TOKEN_IDS) for _ in range(num_tokens)]
        request = Request(
            identity=Identity(request_id=f"r{self._num_made}"),
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            rules=StopRules(max_tokens=1 << 20, eos_token_ids=frozenset({NUM_TOKEN_IDS})),
            arrival=self._num_made,
        )
        self._num_made += 1
        self._open.append(request.request_id)
        self.core.submit(request)


class Steps:
    """A scheduler core and its pool's, side by side."""

    def __init__(self, scene: Scene) -> None:
        self._decoding = Decoding(scene)
        self._pool = KVSide(block_size=BLOCK_SIZE).open("w0", scene.num_blocks)
        self._drive(self._decoding.start())

    def measure(self, num_steps: int) -> StepCost:
        """Cost of that many steps; the garbage collector waits meanwhile, as a server's does between its rare runs."""
        cost = self._decoding.cost = StepCost()
        with _no_collector():
            for _ in range(num_steps):
                self._decoding.renew()
                self._drive(self._decoding.step())
        return cost

    def _drive(self, plans: Generator[Plan, Grants, None]) -> None:
        with suppress(StopIteration):
            plan = next(plans)
            while True:
                plan = plans.send(self._answer(plan))

    def _answer(self, plan: Plan) -> Grants:
        asked = kv_plan(plan)
        began = time.thread_time_ns()
        granted = self._pool.plan_step(asked, plan.step.to_bytes(8, "little"))
        self._decoding.cost.kv_us.append((time.thread_time_ns() - began) / 1e3)
        self._pool.manager.take_events()
        return grants(granted)


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
