"""The `kv.plan` span of an admission: what the prefix cache had for a request, and why not more."""

from collections.abc import Sequence

from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.plan import Admission, AdmissionStatus
from octavo import telemetry


def record_admissions(manager: KVCacheManager, admissions: Sequence[Admission], *, start_ns: int) -> None:
    """One span for each request that was admitted or refused for the first time, in the request's own trace.

    A request that is refused plan after plan has one span for it, not one per plan.
    """
    end_ns = telemetry.now_ns()
    for admission in admissions:
        if admission.status is AdmissionStatus.ADMITTED or admission.num_refusals == 1:
            _record(manager, admission, start_ns=start_ns, end_ns=end_ns)


def _record(manager: KVCacheManager, admission: Admission, *, start_ns: int, end_ns: int) -> None:
    identity = manager.request(admission.handle).identity
    parent = telemetry.context_from_bytes(identity.trace_context)
    if parent is None:
        return
    assert admission.miss_reason is not None, f"admission of {admission.handle} was decided without a lookup"
    telemetry.record_span(
        "kv.plan",
        parent=parent,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={
            "octavo.request.id": identity.request_id,
            "octavo.admission.result": admission.status.value,
            "octavo.cache.query_tokens": admission.num_known_tokens,
            "octavo.cache.hit_tokens": admission.num_cached_tokens,
            "octavo.cache.hit_blocks": admission.num_cached_tokens // manager.block_size,
            "octavo.cache.block_size": manager.block_size,
            "octavo.cache.miss_reason": admission.miss_reason.value,
            "octavo.cache.tier": "device",
            "octavo.cache.evicted_blocks": admission.num_evicted_blocks,
            "octavo.kv.blocks": len(admission.block_ids),
        },
    )
