"""Messages to core values and back: identities, plans, grants. Decides nothing."""

import hashlib

from google.protobuf.message import Message

from kvcache_service.core.block_hash import Fingerprint, namespace_of
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.plan import (
    Admission,
    AdmissionStatus,
    Admits,
    Commits,
    Declaration,
    DeclaredTable,
    Figures,
    Frees,
    Grants,
    Grows,
    Plan,
)
from kvcache_service.core.pools import Pool, PoolKey
from kvcache_service.core.request import Identity
from octavo.columns import Malformed, pack, unpack
from octavo.common.v1 import common_pb2
from octavo.kvcache.v1 import kvcache_pb2 as pb

DIGEST_BYTES = 16
TRACE_CONTEXT_BYTES = (0, 25)

_STATUSES = {
    AdmissionStatus.ADMITTED: pb.ADMISSION_STATUS_ADMITTED,
    AdmissionStatus.REFUSED: pb.ADMISSION_STATUS_REFUSED,
    AdmissionStatus.NOT_TRIED: pb.ADMISSION_STATUS_NOT_TRIED,
}


def digest(message: Message) -> bytes:
    """Tells two messages apart; the same bytes give the same digest."""
    return hashlib.blake2b(message.SerializeToString(deterministic=True), digest_size=DIGEST_BYTES).digest()


def pool_key(message: pb.OpenPoolRequest | pb.PlanStepRequest) -> PoolKey:
    """Which pool a message means."""
    return PoolKey(pool_id=message.pool_id, incarnation=message.incarnation, session=message.session)


def fingerprint(message: common_pb2.Fingerprint) -> Fingerprint:
    """What the hashes of a pool are derived from."""
    return Fingerprint(
        hash_scheme=message.hash_scheme,
        model_digest=message.model_digest,
        tokenizer_digest=message.tokenizer_digest,
        block_size=message.block_size,
        kv_dtype=message.kv_dtype,
        kv_layout=message.kv_layout,
    )


def identity(message: pb.RequestIdentity, namespace_key: bytes) -> Identity:
    """Who a request belongs to; its tenant becomes a namespace here and goes no further."""
    if len(message.trace_context) not in TRACE_CONTEXT_BYTES:
        raise Malformed(f"trace_context has {len(message.trace_context)} bytes; it has 25, or none")
    namespace = namespace_of(message.tenant, namespace_key)
    is_plain = namespace is None and not message.cache_salt
    return Identity(
        request_id=message.request_id,
        extras=NO_EXTRAS if is_plain else Extras(namespace=namespace, salt=message.cache_salt),
        is_bypassing_cache=message.cache_bypass,
        trace_context=message.trace_context,
    )


def declared_table(message: pb.DeclaredTable, namespace_key: bytes) -> DeclaredTable:
    """A table in use."""
    return DeclaredTable(
        handle=message.handle,
        epoch=message.epoch,
        token_ids=unpack("token_ids", message.token_ids),
        block_ids=unpack("block_ids", message.block_ids),
        num_acked_tokens=message.num_acked_tokens,
        num_computed_tokens=message.num_computed_tokens,
        identity=identity(message.identity, namespace_key),
    )


def plan(message: pb.PlanStepRequest, namespace_key: bytes) -> Plan:
    """A plan, column by column; raises Malformed if one is not packed numbers."""
    return Plan(
        step=message.step,
        acked_step=message.acked_step,
        commits=_commits(message.commits),
        frees=Frees(
            handles=unpack("frees.handles", message.frees.handles),
            epochs=unpack("frees.epochs", message.frees.epochs),
        ),
        forgotten_handles=unpack("forgotten_handles", message.forgotten_handles),
        failed_step=message.failed_step,
        declares=[_declaration(declared, namespace_key) for declared in message.declares],
        token_budget=message.token_budget,
        max_admissions=message.max_admissions,
        long_prefill_token_threshold=message.long_prefill_token_threshold,
        whole_prompts_only=message.whole_prompts_only,
        grows=Grows(
            handles=unpack("grows.handles", message.grows.handles),
            wants=unpack("grows.wants", message.grows.wants),
            victims=unpack("grows.victims", message.grows.victims),
        ),
        admits=Admits(
            handles=unpack("admits.handles", message.admits.handles),
            num_known_tokens=unpack("admits.num_known_tokens", message.admits.num_known_tokens),
            num_watermark_blocks=unpack("admits.num_watermark_blocks", message.admits.num_watermark_blocks),
        ),
    )


def plan_response(request: pb.PlanStepRequest, kvcache_incarnation: int) -> pb.PlanStepResponse:
    """An answer that names what was asked and has no outcome yet."""
    return pb.PlanStepResponse(
        pool_id=request.pool_id,
        incarnation=request.incarnation,
        session=request.session,
        step=request.step,
        kvcache_incarnation=kvcache_incarnation,
    )


def grants(granted: Grants) -> pb.Grants:
    """What a plan got."""
    return pb.Grants(
        grow_num_tokens=pack(granted.grow_num_tokens),
        grow_num_new_blocks=pack(granted.grow_num_new_blocks),
        grow_new_block_ids=pack(granted.grow_new_block_ids),
        preempted_handles=pack(granted.preempted_handles),
        refused_handles=pack(granted.refused_handles),
        admissions=[_admission(admission) for admission in granted.admissions],
        figures=figures(granted.figures),
    )


def figures(used: Figures) -> pb.PoolFigures:
    """How a pool is used."""
    return pb.PoolFigures(
        num_blocks=used.num_blocks,
        num_free=used.num_free,
        num_cached=used.num_cached,
        num_held=used.num_held,
        num_query_tokens=used.num_query_tokens,
        num_hit_tokens=used.num_hit_tokens,
        num_preempted_query_tokens=used.num_preempted_query_tokens,
        num_preempted_hit_tokens=used.num_preempted_hit_tokens,
        num_evicted_blocks=used.num_evicted_blocks,
    )


def pool_stats(pool: Pool) -> pb.PoolStats:
    """One pool, for GetStats."""
    return pb.PoolStats(
        pool_id=pool.key.pool_id,
        incarnation=pool.key.incarnation,
        figures=figures(pool.manager.figures),
        num_tables=len(pool.manager.running),
        step=pool.step,
    )


def _commits(message: pb.Commits) -> Commits:
    return Commits(
        handles=unpack("commits.handles", message.handles),
        num_acked_tokens=unpack("commits.num_acked_tokens", message.num_acked_tokens),
        num_new_tokens=unpack("commits.num_new_tokens", message.num_new_tokens),
        new_token_ids=unpack("commits.new_token_ids", message.new_token_ids),
    )


def _declaration(message: pb.Declare, namespace_key: bytes) -> Declaration:
    return Declaration(
        handle=message.handle,
        epoch=message.epoch,
        token_ids=unpack("declares.token_ids", message.token_ids),
        identity=identity(message.identity, namespace_key),
    )


def _admission(admission: Admission) -> pb.Admission:
    return pb.Admission(
        status=_STATUSES[admission.status],
        num_cached_tokens=admission.num_cached_tokens,
        num_granted_tokens=admission.num_granted_tokens,
        block_ids=pack(admission.block_ids),
    )
