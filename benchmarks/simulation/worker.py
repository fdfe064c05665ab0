"""One simulated worker: its scheduler core, its pool, and steps that take their time, two of them ahead."""

import time
from dataclasses import dataclass, field

from benchmarks.simulation.kv_side import KVSide, grants, kv_plan
from benchmarks.simulation.step_time import StepTime
from scheduler_service.core.flight import SentStep
from scheduler_service.core.outcome import Update
from scheduler_service.core.plan import Limits, Pool, StepResult
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request
from scheduler_service.core.scheduler import Scheduler

BLOCK_SIZE = 16
MAX_MODEL_LEN = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all workers of a cell have in common."""

    step_time: StepTime
    policy: Policy = Policy.FCFS
    max_num_seqs: int = 256
    num_blocks: int = 0  # 0 = as many as fit beside the weights
    control_s: float = 0.5e-3  # from a result to the next step at the worker: plan, ask, settle, two hops

    @property
    def pool(self) -> Pool:
        num_blocks = self.num_blocks or self.step_time.num_blocks
        return Pool(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN)

    @property
    def limits(self) -> Limits:
        return Limits(
            max_num_batched_tokens=self.step_time.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_queue_len=1 << 30,
            watermark=0.01,
        )


@dataclass(slots=True, kw_only=True)
class CpuTime:
    """Microseconds of this machine, which nobody's simulated time depends on."""

    scheduler_us: list[float] = field(default_factory=list)  # per step: schedule, settle, update
    kv_us: list[float] = field(default_factory=list)  # per plan that was asked
    placement_us: list[float] = field(default_factory=list)  # per request


@dataclass(frozen=True, slots=True)
class Executed:
    """A step at the worker."""

    sent: SentStep
    end_s: float


@dataclass(slots=True)
class Planned:
    """What came of planning until nothing was left to plan."""

    steps: list[Executed] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)  # without a step


class SimulatedWorker:
    """Plans whenever it may, and says when each planned step will be done."""

    def __init__(self, worker_id: str, setting: Setting, kv_side: KVSide, cpu: CpuTime) -> None:
        self.worker_id = worker_id
        self.core = Scheduler(pool=setting.pool, limits=setting.limits, policy=setting.policy)
        self._setting = setting
        self._pool = kv_side.open(worker_id, setting.pool.num_blocks)
        self._cpu = cpu
        self._free_at_s = 0.0
        self._spent_ns = 0  # on the step that is planned next

    def plan(self, now_s: float) -> Planned:
        """Plan until the window is full or nothing is left to do."""
        planned = Planned()
        while True:
            began = time.thread_time_ns()
            plan = self.core.schedule()
            self._spent_ns += time.thread_time_ns() - began
            if plan is None:
                return planned
            answer = None
            if plan.needs_answer:
                asked = kv_plan(plan)
                began = time.thread_time_ns()
                granted = self._pool.plan_step(asked, plan.step.to_bytes(8, "little"))
                self._cpu.kv_us.append((time.thread_time_ns() - began) / 1e3)
                self._pool.manager.take_events()
                answer = grants(granted)
            began = time.thread_time_ns()
            settlement = self.core.settle(answer)
            self._spent_ns += time.thread_time_ns() - began
            planned.admitted += settlement.admitted
            planned.finished += settlement.finished
            if settlement.sent is not None:
                planned.steps.append(self._execute(settlement.sent, now_s))

    def update(self, sent: SentStep, token_ids: list[int]) -> Update:
        """A step is done."""
        began = time.thread_time_ns()
        update = self.core.update(StepResult(seq=sent.seq, token_ids=token_ids))
        self._cpu.scheduler_us.append((self._spent_ns + time.thread_time_ns() - began) / 1e3)
        self._spent_ns = 0
        return update

    def _execute(self, sent: SentStep, now_s: float) -> Executed:
        """It runs when it has come and the step before it is done."""
        starts_s = max(self._free_at_s, now_s + self._setting.control_s)
        self._free_at_s = starts_s + self._setting.step_time.of(sent)
        return Executed(sent, self._free_at_s)
