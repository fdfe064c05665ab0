"""The scheduler core on the real KV cache manager, with a worker that checks every slot it reads."""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from kvcache_service.core import plan as kv
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.request import Identity as KVIdentity
from scheduler_service.core.outcome import Settlement, Update
from scheduler_service.core.plan import (
    Admission,
    AdmissionStatus,
    DeclaredTable,
    Grants,
    Identity,
    Limits,
    Plan,
    Pool,
    PoolFigures,
    Step,
    StepResult,
    StepStatus,
)
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request, StopRules
from scheduler_service.core.scheduler import Scheduler
from tests.fakes.paged_worker import PagedWorker

BLOCK_SIZE = 16


def family(letter: str, num_tokens: int) -> list[int]:
    """Distinct tokens that no other family has."""
    return list(range(1_000_000 * ord(letter), 1_000_000 * ord(letter) + num_tokens))


def a_request(request_id: str, prompt: Sequence[int], max_tokens: int = 100, **options: object) -> Request:
    rules = options.pop("rules", None) or StopRules(max_tokens=max_tokens)
    names = {name: options.pop(name) for name in ("tenant", "cache_salt", "cache_bypass") if name in options}
    given: Sequence[int] = options.pop("given", ())  # type: ignore[assignment]
    return Request(
        identity=Identity(request_id=request_id, **names),  # type: ignore[arg-type]
        token_ids=[*prompt, *given],
        num_prompt_tokens=len(prompt),
        rules=rules,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


class Rig:
    """Plans, asks, settles and runs; `window=1` acknowledges every step before the next operation."""

    def __init__(
        self,
        *,
        num_blocks: int = 1000,
        max_model_len: int = 100_000,
        policy: Policy = Policy.FCFS,
        window: int = 1,
        caching: bool = True,
        full_sequence_gate: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self._kv_options = {"num_blocks": num_blocks, "block_size": BLOCK_SIZE, "caching": caching,
                            "full_sequence_gate": full_sequence_gate}  # fmt: skip
        pool = Pool(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=max_model_len)
        self.core = Scheduler(pool=pool, limits=limits or Limits(), policy=policy, window=window)
        self.kv = self.new_kv()
        self.worker = PagedWorker(BLOCK_SIZE)
        self.sent: deque[Step] = deque()
        self.requests: dict[str, Request] = {}
        self.plans: list[Plan] = []
        self.finished_ids: list[str] = []
        self._clock = 0

    def new_kv(self) -> KVCacheManager:
        return KVCacheManager(**self._kv_options)  # type: ignore[arg-type]

    def submit(self, request_id: str, prompt: Sequence[int], max_tokens: int = 100, **options: object) -> Request:
        self._clock += 1
        options.setdefault("arrival", self._clock)
        request = a_request(request_id, prompt, max_tokens, **options)
        self.core.submit(request)
        self.requests[request_id] = request
        return request

    def plan(self) -> Settlement | None:
        """One plan and its settlement; its step waits to be run."""
        plan = self.core.schedule()
        if plan is None:
            return None
        self.plans.append(plan)
        settlement = self.core.settle(granted(self.kv, plan) if plan.needs_answer else None)
        if settlement.step is not None:
            self.sent.append(settlement.step)
        self.finished_ids += [request.request_id for request in settlement.finished]
        return settlement

    def result(self) -> Update:
        """Run the oldest sent step and take what it brings."""
        step = self.sent.popleft()
        return self._noted(self.core.update(StepResult(seq=step.seq, token_ids=self.worker.run(step))))

    def step(self) -> dict[str, int]:
        """Plan and run one step, acknowledge it, apply its commits. The tokens that each request got."""
        settlement = self.plan()
        assert settlement is not None, "nothing to plan"
        assert settlement.sent is not None, "the plan gave no step"
        rows = {row.request.request_id: row.num_tokens for row in settlement.sent.rows}
        self.result()
        return rows

    def outcome_of_drafts(self, tokens: Sequence[int]) -> Update:
        """The result of the oldest sent step, without a worker: the tokens of its one row."""
        step = self.sent.popleft()
        return self._noted(self.core.update(StepResult(seq=step.seq, token_ids=tokens, num_tokens=[len(tokens)])))

    def fault(self) -> Update:
        """The oldest sent step fails; the later ones come back void."""
        step = self.sent.popleft()
        self.worker.run(step, is_faulty=True)
        update = self.core.update(StepResult(seq=step.seq, status=StepStatus.FAULT))
        while self.sent:
            self.core.update(StepResult(seq=self.sent.popleft().seq, status=StepStatus.VOID))
        return update

    def run_to_end(self, limit: int = 10_000) -> int:
        """Go on until nothing is left; how many tokens were planned on the way."""
        num_planned = 0
        for _ in range(limit):
            settlement = self.plan()
            if settlement is None and not self.sent:
                return num_planned
            if settlement is not None and settlement.sent is not None:
                num_planned += sum(row.num_tokens for row in settlement.sent.rows)
            if self.sent and (settlement is None or len(self.sent) == 2):
                self.result()
        raise AssertionError(f"did not end in {limit} rounds: {self.core.running} {self.core.waiting}")

    def _noted(self, update: Update) -> Update:
        self.finished_ids += [request.request_id for request in update.finished]
        return update

    def table(self, request_id: str) -> list[int]:
        return self.kv.block_table(self.requests[request_id].handle)

    def restart_kv(self) -> None:
        self.kv = self.new_kv()
        self.reopen_kv()

    def reopen_kv(self) -> None:
        self.kv.adopt([declared(table) for table in self.core.declare_tables()])
        self.core.pool_reopened(figures_of(self.kv.figures))

    @property
    def running_ids(self) -> list[str]:
        return [request.request_id for request in self.core.running]

    @property
    def waiting_ids(self) -> list[str]:
        return [request.request_id for request in self.core.waiting]


def granted(manager: KVCacheManager, plan: Plan) -> Grants:
    """Ask the real manager."""
    return granted_of(manager.plan_step(kv_plan(plan)))


def granted_of(grants: kv.Grants) -> Grants:
    return Grants(
        grow_num_tokens=grants.grow_num_tokens,
        grow_num_new_blocks=grants.grow_num_new_blocks,
        grow_new_block_ids=grants.grow_new_block_ids,
        preempted_handles=grants.preempted_handles,
        refused_handles=grants.refused_handles,
        admissions=[
            Admission(
                status=AdmissionStatus(admission.status.value),
                num_cached_tokens=admission.num_cached_tokens,
                num_granted_tokens=admission.num_granted_tokens,
                block_ids=admission.block_ids,
            )
            for admission in grants.admissions
        ],
        figures=figures_of(grants.figures),
    )


def figures_of(used: kv.Figures) -> PoolFigures:
    return PoolFigures(
        num_blocks=used.num_blocks,
        num_free=used.num_free,
        num_cached=used.num_cached,
        num_held=used.num_held,
        num_held_by_pins_only=used.num_held_by_pins_only,
        num_fenced=used.num_fenced,
    )


def kv_plan(plan: Plan) -> kv.Plan:
    columns = plan.commits
    return kv.Plan(
        step=plan.step,
        acked_step=plan.acked_step,
        commits=kv.Commits(
            handles=columns.handles,
            num_acked_tokens=columns.num_acked_tokens,
            num_new_tokens=columns.num_new_tokens,
            new_token_ids=array("I", columns.new_token_ids),
        ),
        frees=kv.Frees(handles=plan.frees.handles, epochs=plan.frees.epochs),
        forgotten_handles=plan.forgotten_handles,
        failed_step=plan.failed_step,
        declares=list(_declarations(plan)),
        token_budget=plan.token_budget,
        max_admissions=plan.max_admissions,
        long_prefill_token_threshold=plan.long_prefill_token_threshold,
        whole_prompts_only=plan.whole_prompts_only,
        grows=kv.Grows(handles=plan.grows.handles, wants=plan.grows.wants, victims=plan.grows.victims),
        admits=kv.Admits(
            handles=plan.admits.handles,
            num_known_tokens=plan.admits.num_known_tokens,
            num_watermark_blocks=plan.admits.num_watermark_blocks,
        ),
    )


def _declarations(plan: Plan) -> Iterator[kv.Declaration]:
    for new in plan.declares:
        yield kv.Declaration(
            handle=new.handle, epoch=new.epoch, token_ids=new.token_ids, identity=kv_identity(new.identity)
        )


def declared(table: DeclaredTable) -> kv.DeclaredTable:
    return kv.DeclaredTable(
        handle=table.handle,
        epoch=table.epoch,
        token_ids=array("I", table.token_ids),
        block_ids=array("I", table.block_ids),
        num_acked_tokens=table.num_acked_tokens,
        num_computed_tokens=table.num_computed_tokens,
        identity=kv_identity(table.identity),
    )


def kv_identity(identity: Identity) -> KVIdentity:
    return KVIdentity(
        request_id=identity.request_id, extras=extras_of(identity), is_bypassing_cache=identity.cache_bypass
    )


def extras_of(identity: Identity) -> Extras:
    """What the KV cache service makes of an identity; here a tenant's name is its namespace."""
    return Extras(namespace=identity.tenant.encode() or None, salt=identity.cache_salt)
