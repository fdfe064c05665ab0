"""Random submits, cancels, faults, losses and restarts: whatever happens, answers are those of an undisturbed run."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.rejection import Rejected
from scheduler_service.core.request import Request, Status
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import BLOCK_SIZE, Rig, a_request, family, granted

MAX_MODEL_LEN = 200


class RandomRuns(RuleBasedStateMachine):
    """The core, the real KV cache manager and a worker that checks every slot it reads."""

    @initialize(
        num_blocks=st.integers(4, 24),
        budget=st.integers(8, 128),
        num_seqs=st.integers(1, 6),
        threshold=st.sampled_from([0, 0, 10, 40]),
        policy=st.sampled_from(Policy),
        window=st.sampled_from([1, 2, 2]),
        watermark=st.sampled_from([0.0, 0.1]),
        takes_slots=st.booleans(),
    )
    def set_up(self, num_blocks: int, budget: int, num_seqs: int, threshold: int, policy: Policy, window: int,
               watermark: float, takes_slots: bool) -> None:  # fmt: skip
        limits = Limits(
            max_num_batched_tokens=budget, max_num_seqs=num_seqs, long_prefill_token_threshold=threshold,
            watermark=watermark, preempts_for_slots=takes_slots,
        )  # fmt: skip
        self.options = {"num_blocks": num_blocks, "max_model_len": MAX_MODEL_LEN, "policy": policy, "window": window,
                        "limits": limits}  # fmt: skip
        self.rig = Rig(**self.options)  # type: ignore[arg-type]
        self.all: dict[str, Request] = {}
        self.emitted: dict[str, list[int]] = {}
        self.num_finished: dict[str, int] = {}

    @rule(
        shared=st.integers(0, 70),
        own=st.integers(1, 60),
        letter=st.sampled_from("ABC"),
        max_tokens=st.integers(1, 40),
        priority=st.integers(0, 2),
        bypass=st.booleans(),
    )
    def submit(self, shared: int, own: int, letter: str, max_tokens: int, priority: int, bypass: bool) -> None:
        number = len(self.all)
        prompt = family("S", shared) + family(letter, own)
        request = a_request(
            f"r{number}", prompt, max_tokens, priority=priority, arrival=float(number), cache_bypass=bypass
        )
        try:
            self.rig.core.submit(request)
        except Rejected:
            return
        self.all[request.request_id] = request
        self.emitted[request.request_id] = []
        self.num_finished[request.request_id] = 0

    @rule()
    def plan(self) -> None:
        self._settled(self.rig.plan())

    @rule(num_rounds=st.integers(1, 12))
    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self._settled(self.rig.plan())
            if len(self.rig.sent) == self.options["window"]:
                self._updated(self.rig.result())

    @rule(is_applied=st.booleans())
    def lose_an_answer(self, is_applied: bool) -> None:
        """The KV cache service stays, its answer does not: the pool is opened again with declared tables."""
        plan = self.rig.core.schedule()
        if plan is None or not plan.needs_answer:
            if plan is not None:
                self.rig.core.abandon()
            return
        if is_applied:
            granted(self.rig.kv, plan)
        self.rig.core.abandon()
        self.rig.reopen_kv()

    @rule()
    def restart_kv(self) -> None:
        self.rig.restart_kv()

    @rule()
    def plan_without_kv(self) -> None:
        if self.rig.core.schedule(is_kv_ready=False) is not None:
            settlement = self.rig.core.settle(None)
            assert settlement.step is not None
            self.rig.sent.append(settlement.step)

    @precondition(lambda self: self.rig.sent)
    @rule()
    def result(self) -> None:
        self._updated(self.rig.result())

    @precondition(lambda self: self.rig.sent)
    @rule()
    def fault(self) -> None:
        self._updated(self.rig.fault())

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.all)))
        if self.rig.core.abort(request_id) is not None:
            self.num_finished[request_id] += 1

    @rule(num_run=st.integers(0, 2))
    def lose_the_worker(self, num_run: int) -> None:
        """Some steps may have run; their results are lost with it."""
        core = self.rig.core
        requests, poisoned = core.worker_lost()
        self._finished(poisoned)
        self.rig = Rig(**self.options)  # type: ignore[arg-type]
        for request in reversed(requests):
            assert self.rig.core.submit(request, at_front=True)

    @invariant()
    def everybody_ends_at_most_once(self) -> None:
        for request_id, request in self.all.items():
            assert self.num_finished[request_id] == request.is_finished, f"{request_id} is {request.status}"
            assert self.emitted[request_id] == request.output_token_ids
            assert request.hold >= 0

    @invariant()
    def running_requests_hold_the_blocks_that_the_pool_says(self) -> None:
        for request in self.rig.core.running:
            assert len(request.block_ids) * BLOCK_SIZE >= request.num_computed_tokens
            if request.is_declared and not self.rig.core.is_planning:
                assert self.rig.kv.block_table(request.handle) == request.block_ids

    def teardown(self) -> None:
        for _ in range(3000):
            settlement = self.rig.plan()
            self._settled(settlement)
            if self.rig.sent:
                self._updated(self.rig.result())
            elif settlement is None:
                break
        for request in self.all.values():
            assert request.is_finished, f"{request.request_id} is {request.status} for ever"
            self._check_answer(request)
        assert not self.rig.kv.requests
        assert self.rig.kv.figures.num_free == self.rig.kv.figures.num_blocks - 1

    def _check_answer(self, request: Request) -> None:
        prompt = request.token_ids[: request.num_prompt_tokens]
        answer = request.output_token_ids
        assert answer == continuation(prompt, len(answer))
        if request.status is Status.LENGTH and not request.finish_detail:
            assert len(answer) == min(request.rules.max_tokens, MAX_MODEL_LEN - len(prompt))

    def _settled(self, settlement: object) -> None:
        if settlement is not None:
            self._finished(settlement.finished)  # type: ignore[attr-defined]
            sent = settlement.sent  # type: ignore[attr-defined]
            if sent is not None:
                assert sum(row.num_tokens for row in sent.rows) <= self.rig.core.limits.max_num_batched_tokens
                assert len(sent.rows) <= self.rig.core.limits.max_num_seqs

    def _updated(self, update: object) -> None:
        for output in update.outputs:  # type: ignore[attr-defined]
            self.emitted[output.request.request_id] += output.token_ids
        self._finished(update.finished)  # type: ignore[attr-defined]

    def _finished(self, requests: list[Request]) -> None:
        for request in requests:
            self.num_finished[request.request_id] += 1


TestRandomRuns = RandomRuns.TestCase
TestRandomRuns.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
