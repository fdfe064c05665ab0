"""octavo.kvcache.v1.KVCacheService: convert, one core call, convert. Knows no rule; a step waits for nothing here."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Self

import grpc

from kvcache_service import prefix_wire, spans, stats_wire, watch_wire, wire
from kvcache_service.core.cached_prefixes import CachedPrefixes
from kvcache_service.core.errors import (
    BadPin,
    BadPlan,
    BadPool,
    BadPrefix,
    BadTable,
    BadTenant,
    Conflict,
    FingerprintMismatch,
    NothingCached,
    OutOfOrder,
    PinQuotaExceeded,
    StaleSession,
    UnknownPool,
)
from kvcache_service.core.events import AllBlocksCleared, Event
from kvcache_service.core.identities import Identities
from kvcache_service.core.pins import PinName
from kvcache_service.core.plan import Grants
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.core.restore import RestoreOutcome
from kvcache_service.metadata_store import MetadataStore
from kvcache_service.plan_stream import PlanStream
from kvcache_service.watch import Watches
from octavo import logs, telemetry
from octavo.columns import Malformed, unpack
from octavo.errors import StatusTable
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc

SERVICE_NAME = "octavo.kvcache.v1.KVCacheService"
ERASE_TIMEOUT_S = 1.0  # how long the receipt of an erasure waits for Redis

STATUSES: StatusTable = {
    FingerprintMismatch: (grpc.StatusCode.FAILED_PRECONDITION, "FINGERPRINT_MISMATCH"),
    StaleSession: (grpc.StatusCode.FAILED_PRECONDITION, "STALE_SESSION"),
    BadTable: (grpc.StatusCode.FAILED_PRECONDITION, "BAD_TABLE"),
    BadPool: (grpc.StatusCode.INVALID_ARGUMENT, "BAD_POOL"),
    BadPin: (grpc.StatusCode.INVALID_ARGUMENT, "BAD_PIN"),
    BadPrefix: (grpc.StatusCode.INVALID_ARGUMENT, "BAD_PREFIX"),
    BadTenant: (grpc.StatusCode.INVALID_ARGUMENT, "BAD_TENANT"),
    UnknownPool: (grpc.StatusCode.NOT_FOUND, "UNKNOWN_POOL"),
    NothingCached: (grpc.StatusCode.NOT_FOUND, "NOTHING_CACHED"),
    PinQuotaExceeded: (grpc.StatusCode.RESOURCE_EXHAUSTED, "PIN_QUOTA_EXCEEDED"),
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
    """One per process; `incarnation` tells its life from the next."""

    def __init__(
        self, pools: Pools, store: MetadataStore, *, incarnation: int, identities: Identities, watches: Watches
    ) -> None:
        self._pools = pools
        self._store = store
        self._incarnation = incarnation
        self._prefixes = CachedPrefixes(pools)
        self._identities = identities
        self._watches = watches
        self._pins_changed = asyncio.Event()
        self._leaving = asyncio.Event()

    @asynccontextmanager
    async def keeping_time(self) -> AsyncIterator[Self]:
        """Pins end when their time is over, while the block runs; without it, at the next call about pins."""
        async with asyncio.TaskGroup() as tasks:
            timer = tasks.create_task(self._end_pins(), name="pin-timer")
            yield self
            timer.cancel()

    async def leave(self) -> None:
        """The process ends: so do the long streams, in good order, when what has come on them is answered."""
        self._leaving.set()
        self._watches.leave()

    async def OpenPool(self, request: pb.OpenPoolRequest, context: Any) -> pb.OpenPoolResponse:
        block_size = max(1, request.fingerprint.block_size)  # a pool with less is refused below
        pool = self._pools.open(
            wire.pool_key(request),
            request.num_blocks,
            fingerprint=wire.fingerprint(request.fingerprint),
            tables=[wire.declared_table(table, self._identities, block_size=block_size) for table in request.tables],
            opening=wire.opening(request),
        )
        is_new = pool.restored.outcome is not RestoreOutcome.NOT_NEEDED
        events = pool.manager.take_events()
        self._watches.note(request.pool_id, [AllBlocksCleared(), *events] if is_new else events)
        self._store.opened(pool)
        self._pins_changed.set()
        _log.info(
            "pool_opened",
            pool_id=request.pool_id,
            incarnation=request.incarnation,
            session=request.session,
            num_blocks=request.num_blocks,
            num_tables=len(request.tables),
            restore_outcome=pool.restored.outcome.value,
            num_restored_blocks=pool.restored.num_blocks,
        )
        return wire.pool_opened(pool, self._incarnation)

    async def ClosePool(self, request: pb.ClosePoolRequest, context: Any) -> pb.ClosePoolResponse:
        is_closed = self._pools.close(request.pool_id, request.incarnation)
        if is_closed:
            self._watches.note(request.pool_id, [AllBlocksCleared()])
            self._store.closed(request.pool_id)
            _log.info("pool_closed", pool_id=request.pool_id, incarnation=request.incarnation)
        return pb.ClosePoolResponse(closed=is_closed)

    async def Match(self, request: pb.MatchRequest, context: Any) -> pb.MatchResponse:
        queries = [
            prefix_wire.prompt(query, self._identities, block_size=self._block_size) for query in request.queries
        ]
        results = []
        for query in queries:
            results.append(prefix_wire.match_result(self._prefixes.match(query.token_ids, query.identity)))
            await asyncio.sleep(0)  # a batch of long prompts lets the plans of running steps through
        return pb.MatchResponse(results=results)

    async def PlanStep(self, requests: AsyncIterator[pb.PlanStepRequest], context: Any) -> None:
        await PlanStream(requests, answer=self._answer, write=context.write).run(self._leaving)

    async def ResetPrefixCache(self, request: pb.ResetPrefixCacheRequest, context: Any) -> pb.ResetPrefixCacheResponse:
        is_reset = self._prefixes.reset(request.pool_id)
        self._tell_all()
        return pb.ResetPrefixCacheResponse(reset=is_reset)

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:
        query = prefix_wire.prompt(request, self._identities, block_size=self._block_size)
        extras = query.identity.extras
        try:
            pinned = self._prefixes.pin(
                PinName(extras.namespace, request.pin_id),
                query.token_ids,
                extras,
                now_s=time.monotonic(),
                ttl_s=prefix_wire.ttl_s(request.ttl),
            )
        finally:
            self._tell_all()  # older pins may have ended, whatever became of this one
        return prefix_wire.pinned(pinned)

    async def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.UnpinResponse:
        name = PinName(self._identities.tenants.namespace(request.tenant), request.pin_id)
        is_unpinned = self._prefixes.unpin(name, now_s=time.monotonic())
        self._tell_all()
        return pb.UnpinResponse(unpinned=is_unpinned)

    async def EraseNamespace(self, request: pb.EraseNamespaceRequest, context: Any) -> pb.EraseNamespaceResponse:
        namespace = self._identities.tenants.namespace(request.tenant)
        if namespace is None:
            raise BadTenant("tenant is empty; what is outside the namespaces is not erased but reset")
        erased = self._prefixes.erase(namespace)
        erased_unix_nanos = time.time_ns()
        self._watches.forget_past()
        self._tell_all()
        self._store.erased(namespace)
        is_erased_there = await self._store.flushed(ERASE_TIMEOUT_S)
        _log.info("namespace_erased", namespace=namespace.hex(), num_blocks=erased.num_blocks, in_redis=is_erased_there)
        return pb.EraseNamespaceResponse(
            namespace=namespace,
            num_blocks=erased.num_blocks,
            num_pins=erased.num_pins,
            num_requests=erased.num_requests,
            erased_from_metadata=is_erased_there,
            erased_unix_nanos=erased_unix_nanos,
        )

    async def PutPublicPrefix(self, request: pb.PutPublicPrefixRequest, context: Any) -> pb.PutPublicPrefixResponse:
        token_ids = unpack("prefix.token_ids", request.prefix.token_ids)
        if self._identities.public.put(request.prefix.name, token_ids):
            self._store.public_prefixes_changed(dict(self._identities.public))
        return pb.PutPublicPrefixResponse()

    async def DeletePublicPrefix(
        self, request: pb.DeletePublicPrefixRequest, context: Any
    ) -> pb.DeletePublicPrefixResponse:
        is_deleted = self._identities.public.delete(request.name)
        if is_deleted:
            self._store.public_prefixes_changed(dict(self._identities.public))
        return pb.DeletePublicPrefixResponse(deleted=is_deleted)

    async def ListPublicPrefixes(
        self, request: pb.ListPublicPrefixesRequest, context: Any
    ) -> pb.ListPublicPrefixesResponse:
        return prefix_wire.public_prefixes(self._identities.public)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:
        if request.after_event_num < 0:
            raise Malformed(f"after_event_num is {request.after_event_num}; events are numbered from 1")
        told = self._watches.follow(
            request.pool_id, incarnation=request.kvcache_incarnation, after=request.after_event_num
        )
        async with aclosing(told):
            async for events in told:
                yield watch_wire.response(events, self._incarnation)

    async def GetStats(self, request: pb.GetStatsRequest, context: Any) -> pb.GetStatsResponse:
        tenants = self._identities.tenants if request.include_tenants else None
        return pb.GetStatsResponse(
            kvcache_incarnation=self._incarnation,
            pools=[stats_wire.pool_stats(pool, tenants) for pool in self._pools],
            metadata=stats_wire.metadata_stats(self._store.stats),
        )

    @property
    def _block_size(self) -> int:
        """Of all pools, for they share one fingerprint; 1 while there is none, where nothing can be found."""
        return next((pool.manager.block_size for pool in self._pools), 1)

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
        pool.check_opening(request.opening)
        is_new = request.step > pool.step
        plan = wire.plan(request, self._identities, block_size=pool.manager.block_size)
        granted = pool.plan_step(plan, wire.digest(request))
        if is_new:
            self._tell(pool, pool.manager.take_events())
            if telemetry.is_enabled():
                spans.record_admissions(pool.manager, granted.admissions, start_ns=start_ns)
        return granted

    def _tell(self, pool: Pool, events: Iterable[Event]) -> None:
        """What changed goes to the watchers and, behind, to Redis."""
        self._watches.note(pool.key.pool_id, events)
        self._store.changed(pool, events)

    def _tell_all(self) -> None:
        """The same after a call that concerns every pool; pins may end at other times than before."""
        for pool in self._pools:
            if events := pool.manager.take_events():
                self._tell(pool, events)
        self._pins_changed.set()

    async def _end_pins(self) -> None:
        """For ever: wait until the next pin ends, or until another one is the next."""
        while True:
            next_s = self._prefixes.next_pin_expiry_s
            with suppress(TimeoutError):
                async with asyncio.timeout(None if next_s is None else next_s - time.monotonic()):
                    await self._pins_changed.wait()
            self._pins_changed.clear()
            if self._prefixes.expire_pins(time.monotonic()):
                self._tell_all()
