"""Messages to core values and back: identities, plans, grants. Decides nothing."""

import hashlib
from array import array

from google.protobuf.message import Message

from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.hash_extras import Adapter
from kvcache_service.core.identities import Identities
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
from kvcache_service.core.restore import GrantedBlocks, Opening, Position, RestoreOutcome
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
_RESTORE_OUTCOMES = {
    RestoreOutcome.NOT_NEEDED: pb.RESTORE_OUTCOME_NOT_NEEDED,
    RestoreOutcome.RESTORED: pb.RESTORE_OUTCOME_RESTORED,
    RestoreOutcome.NOTHING_RECORDED: pb.RESTORE_OUTCOME_NOTHING_RECORDED,
    RestoreOutcome.NO_ANSWER: pb.RESTORE_OUTCOME_NO_ANSWER,
    RestoreOutcome.TOO_OLD: pb.RESTORE_OUTCOME_TOO_OLD,
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


def opening(message: pb.OpenPoolRequest) -> Opening:
    """What the scheduler that opens a pool remembers of its grants."""
    return Opening(
        scheduler_incarnation=message.scheduler_incarnation,
        number=message.opening,
        granted_after=Position(message.granted_after_opening, message.granted_after_step),
        granted=[
            GrantedBlocks(Position(granted.opening, granted.step), unpack("granted.block_ids", granted.block_ids))
            for granted in message.granted
        ],
    )


def pool_opened(pool: Pool, kvcache_incarnation: int) -> pb.OpenPoolResponse:
    """The answer to an opening; the fingerprint is what this service hashes under, for the peer to check."""
    return pb.OpenPoolResponse(
        kvcache_incarnation=kvcache_incarnation,
        figures=figures(pool.manager.figures),
        fingerprint=_fingerprint(pool.fingerprint),
        restore_outcome=_RESTORE_OUTCOMES[pool.restored.outcome],
        num_restored_blocks=pool.restored.num_blocks,
    )


def identity(
    message: pb.RequestIdentity, identities: Identities, *, token_ids: "array[int]", block_size: int
) -> Identity:
    """Who the request with this prompt belongs to; its tenant becomes a namespace here and goes no further."""
    if len(message.trace_context) not in TRACE_CONTEXT_BYTES:
        raise Malformed(f"trace_context has {len(message.trace_context)} bytes; it has 25, or none")
    return Identity(
        request_id=message.request_id,
        extras=identities.extras(
            message.tenant,
            token_ids,
            salt=message.cache_salt,
            adapter=_adapter(message.adapter) if message.HasField("adapter") else None,
            block_size=block_size,
        ),
        is_bypassing_cache=message.cache_bypass,
        trace_context=message.trace_context,
    )


def declared_table(message: pb.DeclaredTable, identities: Identities, *, block_size: int) -> DeclaredTable:
    """A table in use."""
    token_ids = unpack("token_ids", message.token_ids)
    return DeclaredTable(
        handle=message.handle,
        epoch=message.epoch,
        token_ids=token_ids,
        block_ids=unpack("block_ids", message.block_ids),
        num_acked_tokens=message.num_acked_tokens,
        num_computed_tokens=message.num_computed_tokens,
        identity=identity(message.identity, identities, token_ids=token_ids, block_size=block_size),
    )


def plan(message: pb.PlanStepRequest, identities: Identities, *, block_size: int) -> Plan:
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
        declares=[_declaration(declared, identities, block_size=block_size) for declared in message.declares],
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
        opening=request.opening,
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
        num_fenced=used.num_fenced,
        num_pinned=used.num_pinned,
        num_held_by_pins_only=used.num_held_by_pins_only,
    )


def _commits(message: pb.Commits) -> Commits:
    return Commits(
        handles=unpack("commits.handles", message.handles),
        num_acked_tokens=unpack("commits.num_acked_tokens", message.num_acked_tokens),
        num_new_tokens=unpack("commits.num_new_tokens", message.num_new_tokens),
        new_token_ids=unpack("commits.new_token_ids", message.new_token_ids),
    )


def _declaration(message: pb.Declare, identities: Identities, *, block_size: int) -> Declaration:
    token_ids = unpack("declares.token_ids", message.token_ids)
    return Declaration(
        handle=message.handle,
        epoch=message.epoch,
        token_ids=token_ids,
        identity=identity(message.identity, identities, token_ids=token_ids, block_size=block_size),
    )


def _adapter(message: pb.Adapter) -> Adapter:
    if not message.name or not message.content_digest:
        raise Malformed(f"adapter {message.name!r} needs a name and the digest of its weights")
    return Adapter(name=message.name, content_digest=message.content_digest)


def _admission(admission: Admission) -> pb.Admission:
    return pb.Admission(
        status=_STATUSES[admission.status],
        num_cached_tokens=admission.num_cached_tokens,
        num_granted_tokens=admission.num_granted_tokens,
        block_ids=pack(admission.block_ids),
    )


def _fingerprint(held: Fingerprint) -> common_pb2.Fingerprint:
    return common_pb2.Fingerprint(
        hash_scheme=held.hash_scheme,
        model_digest=held.model_digest,
        tokenizer_digest=held.tokenizer_digest,
        block_size=held.block_size,
        kv_dtype=held.kv_dtype,
        kv_layout=held.kv_layout,
    )
