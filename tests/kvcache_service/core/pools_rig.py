"""Pools that were opened and have run something, without messages."""

from collections.abc import Sequence

from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.plan import Admits, Declaration, Frees, Plan
from kvcache_service.core.pools import Pool, PoolKey, Pools
from kvcache_service.core.request import Identity

FINGERPRINT = Fingerprint(model_digest=b"model", kv_dtype="float32")


def opened(pools: Pools, pool_id: str, *, num_blocks: int = 21, incarnation: int = 5) -> Pool:
    key = PoolKey(pool_id=pool_id, incarnation=incarnation, session=1)
    return pools.open(key, num_blocks, fingerprint=FINGERPRINT, tables=[])


def start(pool: Pool, handle: int, prompt: Sequence[int], extras: Extras = NO_EXTRAS) -> None:
    """Admit a request, and acknowledge the step."""
    step = pool.step
    declared = Declaration(handle=handle, token_ids=prompt, identity=Identity(extras=extras))
    plan = Plan(
        step=step + 1,
        token_budget=10_000,
        max_admissions=1,
        declares=[declared],
        admits=Admits(handles=[handle], num_known_tokens=[len(prompt)], num_watermark_blocks=[0]),
    )
    pool.plan_step(plan, b"start %d" % step)
    pool.plan_step(Plan(step=step + 2, acked_step=step + 1), b"acked %d" % step)


def end(pool: Pool, handle: int) -> None:
    pool.plan_step(Plan(step=pool.step + 1, frees=Frees(handles=[handle], epochs=[0])), b"end %d" % pool.step)


def run(pool: Pool, handle: int, prompt: Sequence[int], extras: Extras = NO_EXTRAS) -> None:
    """One request from its admission to its end."""
    start(pool, handle, prompt, extras)
    end(pool, handle)
