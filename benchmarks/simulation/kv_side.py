"""The KV cache service's core beside the scheduler's, in one process: plans and grants handed over without a wire."""

from array import array
from collections.abc import Sequence

from kvcache_service.core import plan as kv
from kvcache_service.core.block_hash import HASH_SCHEME, Fingerprint
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.pools import Pool, PoolKey, Pools
from kvcache_service.core.request import Identity as KVIdentity
from scheduler_service.core.plan import Admission, AdmissionStatus, Grants, Identity, Plan, PoolFigures

_STATUSES = {status: AdmissionStatus(status.value) for status in kv.AdmissionStatus}


class KVSide:
    """Every worker's pool."""

    def __init__(self, *, block_size: int, caching: bool = True) -> None:
        self._fingerprint = Fingerprint(
            hash_scheme=HASH_SCHEME,
            model_digest=bytes(32),
            tokenizer_digest=bytes(32),
            block_size=block_size,
            kv_dtype="bfloat16",
            kv_layout="simulated",
        )
        self._pools = Pools(caching=caching)

    def open(self, pool_id: str, num_blocks: int) -> Pool:
        """A new worker's pool."""
        key = PoolKey(pool_id=pool_id, incarnation=1, session=1)
        return self._pools.open(key, num_blocks, fingerprint=self._fingerprint, tables=())

    def match(self, token_ids: Sequence[int], identity: Identity) -> dict[str, int]:
        """Tokens of a prompt that each pool holds; hashed once, as all pools hash alike."""
        managers = {pool.key.pool_id: pool.manager for pool in self._pools}
        keys = next(iter(managers.values())).prefix_keys(token_ids[:-1], _identity(identity).extras)
        return {pool_id: manager.num_committed(keys) * manager.block_size for pool_id, manager in managers.items()}


def kv_plan(plan: Plan) -> kv.Plan:
    """The scheduler's plan as the KV cache service gets it."""
    commits, grows, admits = plan.commits, plan.grows, plan.admits
    return kv.Plan(
        step=plan.step,
        acked_step=plan.acked_step,
        commits=kv.Commits(
            handles=commits.handles,
            num_acked_tokens=commits.num_acked_tokens,
            num_new_tokens=commits.num_new_tokens,
            new_token_ids=array("I", commits.new_token_ids),
        ),
        frees=kv.Frees(handles=plan.frees.handles, epochs=plan.frees.epochs),
        forgotten_handles=plan.forgotten_handles,
        failed_step=plan.failed_step,
        declares=[
            kv.Declaration(
                handle=new.handle,
                epoch=new.epoch,
                token_ids=array("I", new.token_ids),
                identity=_identity(new.identity),
            )
            for new in plan.declares
        ],
        token_budget=plan.token_budget,
        max_admissions=plan.max_admissions,
        long_prefill_token_threshold=plan.long_prefill_token_threshold,
        whole_prompts_only=plan.whole_prompts_only,
        grows=kv.Grows(handles=grows.handles, wants=grows.wants, victims=grows.victims),
        admits=kv.Admits(
            handles=admits.handles,
            num_known_tokens=admits.num_known_tokens,
            num_watermark_blocks=admits.num_watermark_blocks,
        ),
    )


def grants(granted: kv.Grants) -> Grants:
    """What the KV cache service answered, as the scheduler gets it."""
    return Grants(
        grow_num_tokens=granted.grow_num_tokens,
        grow_num_new_blocks=granted.grow_num_new_blocks,
        grow_new_block_ids=granted.grow_new_block_ids,
        preempted_handles=granted.preempted_handles,
        refused_handles=granted.refused_handles,
        admissions=[
            Admission(
                status=_STATUSES[admission.status],
                num_cached_tokens=admission.num_cached_tokens,
                num_granted_tokens=admission.num_granted_tokens,
                block_ids=admission.block_ids,
            )
            for admission in granted.admissions
        ],
        figures=PoolFigures(
            num_blocks=granted.figures.num_blocks,
            num_free=granted.figures.num_free,
            num_cached=granted.figures.num_cached,
            num_held=granted.figures.num_held,
        ),
    )


def _identity(identity: Identity) -> KVIdentity:
    """Tenants share prefixes here: who computes what is the scheduler's side of the matter."""
    extras = Extras(salt=identity.cache_salt) if identity.cache_salt else NO_EXTRAS
    return KVIdentity(request_id=identity.request_id, extras=extras, is_bypassing_cache=identity.cache_bypass)
