"""octavo.kvcache.v1.KVCacheService: convert, one core call, convert. Knows no rule and waits for nothing."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from kvcache_service import spans, wire
from kvcache_service.core.errors import (
    BadPlan,
    BadPool,
    BadTable,
    Conflict,
    FingerprintMismatch,
    OutOfOrder,
    StaleSession,
    UnknownPool,
)
from kvcache_service.core.plan import Grants
from kvcache_service.core.pools import Pools
from kvcache_service.metadata_store import MetadataStore
from octavo import logs, telemetry
from octavo.columns import Malformed, unpack
from octavo.errors import StatusTable
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc

SERVICE_NAME = "octavo.kvcache.v1.KVCacheService"

STATUSES: StatusTable = {
    FingerprintMismatch: (grpc.StatusCode.FAILED_PRECONDITION, "FINGERPRINT_MISMATCH"),
    StaleSession: (grpc.StatusCode.FAILED_PRECONDITION, "STALE_SESSION"),
    BadTable: (grpc.StatusCode.FAILED_PRECONDITION, "BAD_TABLE"),
    BadPool: (grpc.StatusCode.INVALID_ARGUMENT, "BAD_POOL"),
    UnknownPool: (grpc.StatusCode.NOT_FOUND, "UNKNOWN_POOL"),
    Malformed: (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED"),
}

# A plan that cannot be applied is answered, so that one scheduler's mistake does not end the stream of its pools.
REFUSALS: Mapping[type[Exception], str] = {
    UnknownPool: "UNKNOWN_POOL",
    StaleSession: "STALE_SESSION",
    OutOfOrder: "OUT_OF_ORDER",
    Conflict: "CONFLICT",
    BadPlan: "BAD_PLAN",
    Malformed: "BAD_PLAN",
}

_log = logs.get(__name__)


class KVCacheServicer(kvcache_pb2_grpc.KVCacheServiceServicer):
    """One per process; `incarnation` tells its life from the next, `namespace_key` keeps tenants apart."""

    def __init__(self, pools: Pools, store: MetadataStore, *, incarnation: int, namespace_key: bytes) -> None:
        self._pools = pools
        self._store = store
        self._incarnation = incarnation
        self._namespace_key = namespace_key

    async def OpenPool(self, request: pb.OpenPoolRequest, context: Any) -> pb.OpenPoolResponse:
        pool = self._pools.open(
            wire.pool_key(request),
            request.num_blocks,
            fingerprint=wire.fingerprint(request.fingerprint),
            tables=[wire.declared_table(table, self._namespace_key) for table in request.tables],
        )
        self._store.opened(pool)
        _log.info(
            "pool_opened",
            pool_id=request.pool_id,
            incarnation=request.incarnation,
            session=request.session,
            num_blocks=request.num_blocks,
            num_tables=len(request.tables),
        )
        return pb.OpenPoolResponse(kvcache_incarnation=self._incarnation, figures=wire.figures(pool.manager.figures))

    async def ClosePool(self, request: pb.ClosePoolRequest, context: Any) -> pb.ClosePoolResponse:
        is_closed = self._pools.close(request.pool_id, request.incarnation)
        if is_closed:
            self._store.closed(request.pool_id)
            _log.info("pool_closed", pool_id=request.pool_id, incarnation=request.incarnation)
        return pb.ClosePoolResponse(closed=is_closed)

    async def Match(self, request: pb.MatchRequest, context: Any) -> pb.MatchResponse:
        return pb.MatchResponse(results=[self._match(query) for query in request.queries])

    async def PlanStep(
        self, requests: AsyncIterator[pb.PlanStepRequest], context: Any
    ) -> AsyncIterator[pb.PlanStepResponse]:
        async for request in requests:
            yield self._answer(request)

    async def ResetPrefixCache(self, request: pb.ResetPrefixCacheRequest, context: Any) -> pb.ResetPrefixCacheResponse:
        is_reset = self._pools.reset_prefix_cache(request.pool_id)
        for pool in self._pools:
            self._store.changed(pool, pool.manager.take_events())
        return pb.ResetPrefixCacheResponse(reset=is_reset)

    async def GetStats(self, request: pb.GetStatsRequest, context: Any) -> pb.GetStatsResponse:
        written = self._store.stats
        return pb.GetStatsResponse(
            kvcache_incarnation=self._incarnation,
            pools=[wire.pool_stats(pool) for pool in self._pools],
            metadata=pb.MetadataStats(
                connected=written.is_connected,
                lag_s=written.lag_s,
                num_pending=written.num_pending,
                num_errors=written.num_errors,
            ),
        )

    def _match(self, query: pb.MatchQuery) -> pb.MatchResult:
        token_ids = unpack("token_ids", query.token_ids)
        matches = self._pools.match(token_ids, wire.identity(query.identity, self._namespace_key))
        return pb.MatchResult(
            pools=[pb.PoolMatch(pool_id=pool_id, num_cached_tokens=cached) for pool_id, cached in matches.items()]
        )

    def _answer(self, request: pb.PlanStepRequest) -> pb.PlanStepResponse:
        response = wire.plan_response(request, self._incarnation)
        try:
            response.grants.CopyFrom(wire.grants(self._apply(request)))
        except tuple(REFUSALS) as mistake:
            response.refusal.reason = REFUSALS[type(mistake)]
            response.refusal.message = str(mistake)
            _log.warning(
                "plan_refused", pool_id=request.pool_id, step=request.step, reason=response.refusal.reason,
                why=str(mistake),
            )  # fmt: skip
        return response

    def _apply(self, request: pb.PlanStepRequest) -> Grants:
        start_ns = telemetry.now_ns()
        pool = self._pools.get(wire.pool_key(request))
        is_new = request.step > pool.step
        granted = pool.plan_step(wire.plan(request, self._namespace_key), wire.digest(request))
        if is_new:
            self._store.changed(pool, pool.manager.take_events())
            if telemetry.is_enabled():
                spans.record_admissions(pool.manager, granted.admissions, start_ns=start_ns)
        return granted
