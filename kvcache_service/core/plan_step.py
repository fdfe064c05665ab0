"""The loop of one plan: ops in their order, tokens handed out until the budget is gone, victims preempted for others.

Every grow that fits the blocks it holds costs a few comparisons and makes no object.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from kvcache_service.core.plan import Admission, AdmissionStatus, Grants, Plan

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager


def apply(manager: KVCacheManager, plan: Plan) -> Grants:
    """Apply a plan that `plan_check` found to be sound."""
    _settle(manager, plan)
    growing = _grow(manager, plan)
    admissions = _admit(manager, plan, growing)
    new_block_ids = array("I")
    for block_ids in growing.new_block_ids.values():
        new_block_ids.extend(block_ids)
    return Grants(
        grow_num_tokens=growing.num_tokens,
        grow_num_new_blocks=growing.num_new_blocks(),
        grow_new_block_ids=new_block_ids,
        preempted_handles=growing.preempted_handles,
        refused_handles=growing.refused_handles,
        admissions=admissions,
        figures=manager.figures,
    )


class _Growing:
    """What the grows of a plan got so far."""

    __slots__ = ("_manager", "_plan", "_victims", "new_block_ids", "num_tokens", "preempted_handles", "refused_handles",
                 "token_budget")  # fmt: skip

    def __init__(self, manager: KVCacheManager, plan: Plan) -> None:
        self.token_budget = plan.token_budget
        self.num_tokens = array("I", bytes(4 * len(plan.grows.handles)))  # per grow
        self.new_block_ids: dict[int, list[int]] = {}  # by index of the grow, ascending
        self.preempted_handles: list[int] = []
        self.refused_handles: list[int] = []
        self._manager = manager
        self._plan = plan
        self._victims = iter(plan.grows.victims)

    def num_new_blocks(self) -> array[int]:
        """Per grow."""
        counts = array("I", bytes(4 * len(self.num_tokens)))
        for index, block_ids in self.new_block_ids.items():
            counts[index] = len(block_ids)
        return counts

    def extend_table(self, index: int, num_tokens: int) -> bool:
        """A grow that needs new blocks, and perhaps victims; false if it was refused."""
        handle = self._plan.grows.handles[index]
        growth = self._manager.grow(handle, num_tokens, victims=self._victims)
        for preempted in growth.preempted_handles:
            self._give_back(preempted)
        if growth.new_block_ids is not None:
            self.new_block_ids[index] = growth.new_block_ids
            return True
        if handle in self._manager.running:
            self.refused_handles.append(handle)
        return False

    def _give_back(self, preempted: int) -> None:
        """A preempted request gets nothing in this plan; what it was granted goes to the others."""
        self.preempted_handles.append(preempted)
        if preempted in self._plan.grows.handles:
            index = self._plan.grows.handles.index(preempted)
            self.token_budget += self.num_tokens[index]
            self.num_tokens[index] = 0
            self.new_block_ids.pop(index, None)


def _settle(manager: KVCacheManager, plan: Plan) -> None:
    """What happened since the last plan: acks, commits, frees, forgets, faults, new requests."""
    if plan.acked_step:
        manager.ack(plan.acked_step)
    commits, start = plan.commits, 0
    for handle, num_acked, num_new in zip(
        commits.handles, commits.num_acked_tokens, commits.num_new_tokens, strict=True
    ):
        manager.commit(handle, num_acked, commits.new_token_ids[start : start + num_new])
        start += num_new
    for handle, epoch in zip(plan.frees.handles, plan.frees.epochs, strict=True):
        manager.free(handle, epoch)
    for handle in plan.forgotten_handles:
        manager.forget(handle)
    if plan.failed_step:
        manager.fail(plan.failed_step)
    for declared in plan.declares:
        manager.declare(declared.handle, declared.token_ids, epoch=declared.epoch, identity=declared.identity)


def _grow(manager: KVCacheManager, plan: Plan) -> _Growing:
    """Advance the running requests in order, as far as budget and blocks reach."""
    running, growing, budget = manager.running, _Growing(manager, plan), plan.token_budget
    granted = growing.num_tokens
    for index, (handle, want) in enumerate(zip(plan.grows.handles, plan.grows.wants or repeat(1), strict=False)):
        request = running.get(handle)
        if request is None or not budget:
            continue  # preempted earlier in this plan, or nothing left to hand out
        num_tokens = want if want < budget else budget
        start = request.num_computed_tokens
        if start + num_tokens <= request.num_slots:
            request.num_computed_tokens = start + num_tokens
            if len(request.keys) > request.num_named_blocks:
                manager.publication.reserve(request, plan.step, start=start)
        else:
            growing.token_budget = budget
            is_granted = growing.extend_table(index, num_tokens)
            budget = growing.token_budget  # with what the victims give back
            if handle not in running:
                break  # it was its own victim: the running phase ends
            if not is_granted:
                continue
        granted[index] = num_tokens
        budget -= num_tokens
    growing.token_budget = budget
    return growing


def _admit(manager: KVCacheManager, plan: Plan, growing: _Growing) -> list[Admission]:
    """Admit waiting requests in queue order; after a preemption nobody, after a refusal nobody else."""
    admits, budget, num_left = plan.admits, growing.token_budget, plan.max_admissions
    is_over = bool(growing.preempted_handles)
    admissions = []
    for index, handle in enumerate(admits.handles):
        if is_over or budget == 0 or num_left == 0:
            admissions.append(Admission(handle=handle, status=AdmissionStatus.NOT_TRIED))
            continue
        admission = _admit_one(manager, plan, index, budget=budget)
        admissions.append(admission)
        is_over = admission.status is AdmissionStatus.REFUSED
        budget -= admission.num_granted_tokens
        num_left -= 1
    return admissions


def _admit_one(manager: KVCacheManager, plan: Plan, index: int, *, budget: int) -> Admission:
    """One admission within the budget; without chunked prefill the uncached rest must fit into it whole."""
    handle, num_known = plan.admits.handles[index], plan.admits.num_known_tokens[index]
    num_watermark = plan.admits.num_watermark_blocks[index]
    threshold = plan.long_prefill_token_threshold or num_known
    if plan.whole_prompts_only:
        num_uncached = num_known - len(manager.hits(manager.request(handle), num_known)) * manager.block_size
        if min(num_uncached, threshold) > budget:
            return Admission(handle=handle, status=AdmissionStatus.REFUSED, num_known_tokens=num_known)
    return manager.admit(handle, min(budget, threshold), num_known_tokens=num_known, num_watermark_blocks=num_watermark)
