"""Whether a plan makes sense for its pool, found out before anything of it is applied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from kvcache_service.core.errors import BadPlan
from kvcache_service.core.plan import Admits, Commits, Frees, Grows, Plan

if TYPE_CHECKING:
    from kvcache_service.core.kv_cache_manager import KVCacheManager


def check(manager: KVCacheManager, plan: Plan) -> None:
    """Raise BadPlan if an op names a request that is not where the op needs it to be at its turn."""
    _check_numbers(plan)
    _check_commits(manager, plan.commits)
    freed = _freed(manager, plan.frees)
    running = manager.running.keys() - freed if freed else manager.running.keys()
    forgotten = _distinct("forget", plan.forgotten_handles)
    _all_in("forget", forgotten, manager.requests.keys())
    _none_in("forget", forgotten, running, "still holds blocks; free it first")
    declared = _distinct("declare", [request.handle for request in plan.declares])
    _none_in("declare", declared, manager.requests.keys(), "was declared before; a handle is used once")
    _check_grows(plan.grows, running)
    known = manager.requests.keys() - forgotten | declared if forgotten or declared else manager.requests.keys()
    _check_admits(plan.admits, known, running)


def _check_numbers(plan: Plan) -> None:
    for name in ("acked_step", "failed_step", "token_budget", "max_admissions", "long_prefill_token_threshold"):
        if getattr(plan, name) < 0:
            raise BadPlan(f"{name} is {getattr(plan, name)}; it cannot be negative")
    if plan.acked_step >= plan.step:
        raise BadPlan(f"plan {plan.step} acknowledges plan {plan.acked_step}, which is not before it")


def _check_commits(manager: KVCacheManager, commits: Commits) -> None:
    _same_length("commits", commits.handles, commits.num_acked_tokens, commits.num_new_tokens)
    if sum(commits.num_new_tokens) != len(commits.new_token_ids):
        raise BadPlan(f"commits name {sum(commits.num_new_tokens)} new tokens and carry {len(commits.new_token_ids)}")
    _all_in("commit", commits.handles, manager.requests.keys())
    for handle, num_acked in zip(commits.handles, commits.num_acked_tokens, strict=True):
        request = manager.running.get(handle)
        if request is not None and num_acked > request.num_computed_tokens:
            raise BadPlan(
                f"commit says that {num_acked} positions of request {handle} are written; "
                f"{request.num_computed_tokens} were planned"
            )


def _freed(manager: KVCacheManager, frees: Frees) -> set[int]:
    """The running requests that the plan releases."""
    _same_length("frees", frees.handles, frees.epochs)
    _all_in("free", frees.handles, manager.requests.keys())
    freed = set()
    for handle, epoch in zip(frees.handles, frees.epochs, strict=True):
        request = manager.requests[handle]
        if epoch > request.epoch:
            raise BadPlan(f"free names epoch {epoch} of request {handle}, which is in epoch {request.epoch}")
        if epoch == request.epoch and request.block_table:
            freed.add(handle)
    return freed


def _check_grows(grows: Grows, running: AbstractSet[int]) -> None:
    if grows.wants:
        _same_length("grows", grows.handles, grows.wants)
        if min(grows.wants) == 0:
            raise BadPlan("a grow wants no tokens; leave it out")
    _all_in("grow", _distinct("grow", grows.handles), running)
    _all_in("victims", grows.victims, running)


def _check_admits(admits: Admits, known: AbstractSet[int], running: AbstractSet[int]) -> None:
    _same_length("admits", admits.handles, admits.num_known_tokens, admits.num_watermark_blocks)
    admitted = _distinct("admit", admits.handles)
    _all_in("admit", admitted, known)
    _none_in("admit", admitted, running, "holds blocks already; grow it")
    if admitted and min(admits.num_known_tokens) == 0:
        raise BadPlan("an admit knows no tokens; a request has at least one")


def _same_length(name: str, *columns: Sequence[int]) -> None:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise BadPlan(f"the columns of {name} have {lengths} rows; they must be equally long")


def _distinct(op: str, handles: Collection[int]) -> set[int]:
    distinct = set(handles)
    if len(distinct) != len(handles):
        raise BadPlan(f"{op} names a request twice among {list(handles)}")
    return distinct


def _all_in(op: str, handles: Iterable[int], place: AbstractSet[int]) -> None:
    asked = set(handles)
    if not place >= asked:
        missing = asked - place
        what = "holds no blocks" if op in ("grow", "victims") else "is unknown; declare it first"
        raise BadPlan(f"{op}: request {min(missing)} {what}")


def _none_in(op: str, handles: AbstractSet[int], place: AbstractSet[int], why: str) -> None:
    there = handles & place
    if there:
        raise BadPlan(f"{op}: request {min(there)} {why}")
