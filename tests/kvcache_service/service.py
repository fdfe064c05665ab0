"""The service on a real gRPC port, without Redis, and the scheduler's end of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import pytest

from kvcache_service.core.event_log import EventLog
from kvcache_service.core.identities import Identities
from kvcache_service.core.pools import Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants
from kvcache_service.metadata_store import MetadataStore
from kvcache_service.servicer import SERVICE_NAME, STATUSES, KVCacheServicer
from kvcache_service.watch import Watches
from octavo import client, errors, server
from octavo.columns import pack
from octavo.common.v1.common_pb2 import Fingerprint
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc as pb_grpc

INCARNATION = 4242
NAMESPACE_KEY = b"key"
NO_REDIS = "redis://127.0.0.1:1/0"  # nothing listens there: the service must not mind
FINGERPRINT = Fingerprint(hash_scheme=1, model_digest=b"m", block_size=16, kv_dtype="float32", kv_layout="nb2hsd")


@dataclass(slots=True)
class Service:
    """A running service, and one stream of plans to it."""

    stub: Any
    stream: Any
    pools: Pools
    store: MetadataStore
    log: EventLog

    async def open(self, pool_id: str = "w1", session: int = 1, **fields: Any) -> pb.OpenPoolResponse:
        defaults: dict[str, Any] = {"incarnation": 5, "num_blocks": 21, "fingerprint": FINGERPRINT}
        request = pb.OpenPoolRequest(pool_id=pool_id, session=session, **(defaults | fields))
        response: pb.OpenPoolResponse = await self.stub.OpenPool(request, timeout=5)
        return response

    async def plan(self, step: int, **fields: Any) -> pb.PlanStepResponse:
        defaults: dict[str, Any] = {"pool_id": "w1", "incarnation": 5, "session": 1, "token_budget": 100_000}
        return await self.send(pb.PlanStepRequest(step=step, max_admissions=9, **(defaults | fields)))

    async def send(self, request: pb.PlanStepRequest) -> pb.PlanStepResponse:
        await self.stream.write(request)
        async with asyncio.timeout(5):
            response: pb.PlanStepResponse = await self.stream.read()
        return response

    async def run(self, handle: int, prompt: Sequence[int], *, pool_id: str = "w1", **identity: Any) -> pb.Admission:
        """One request from declare to free: plans 3 h + 1 to 3 h + 3 of its pool; what it was admitted with."""
        step, first = 3 * handle, {"pool_id": pool_id}
        admitted = await self.plan(step + 1, acked_step=step, **first, **admit(handle, prompt, **identity))
        await self.plan(step + 2, acked_step=step + 1, **first)
        await self.plan(step + 3, acked_step=step + 2, frees=free(handle), **first)
        return admitted.grants.admissions[0]

    async def call(self, method: str, **fields: Any) -> Any:
        """A unary call by its name."""
        return await getattr(self.stub, method)(getattr(pb, f"{method}Request")(**fields), timeout=5)

    async def match(self, prompt: Sequence[int], **identity: Any) -> dict[str, pb.PoolMatch]:
        """What each pool holds of one prompt."""
        query = pb.MatchQuery(token_ids=pack(prompt), identity=pb.RequestIdentity(**identity))
        (result,) = (await self.call("Match", queries=[query])).results
        return {match.pool_id: match for match in result.pools}

    async def cached(self, prompt: Sequence[int], **identity: Any) -> list[int]:
        """How many tokens of a prompt each pool holds, in the order in which they were opened."""
        return [match.num_cached_tokens for match in (await self.match(prompt, **identity)).values()]

    async def stats(self, *, include_tenants: bool = False) -> pb.PoolStats:
        """Figures of the first pool."""
        response: pb.GetStatsResponse = await self.call("GetStats", include_tenants=include_tenants)
        return response.pools[0]


@asynccontextmanager
async def serving(
    *, caching: bool = True, redis_url: str = NO_REDIS, log: EventLog | None = None, incarnation: int = INCARNATION
) -> AsyncIterator[Service]:
    """As the process does it, with a namespace key that does not change."""
    pools, log = Pools(caching=caching), EventLog() if log is None else log
    async with MetadataStore.connect(
        redis_url, pools, kvcache_incarnation=incarnation, namespace_key=NAMESPACE_KEY
    ) as store:
        identities = Identities(Tenants(NAMESPACE_KEY), PublicPrefixes())
        await store.restore(identities.public)
        made = KVCacheServicer(
            pools,
            store,
            incarnation=incarnation,
            identities=identities,
            watches=Watches(pools, incarnation=incarnation, log=log),
        )
        register = partial(pb_grpc.add_KVCacheServiceServicer_to_server, made)
        async with (
            made.keeping_time(),
            server.started("127.0.0.1:0", register, STATUSES, service_names=[SERVICE_NAME]) as running,
            client.channel(running.address) as channel,
        ):
            stub = pb_grpc.KVCacheServiceStub(channel)
            yield Service(stub, stub.PlanStep(), pools, store, log)


def declare(handle: int, prompt: Sequence[int], **identity: Any) -> pb.Declare:
    return pb.Declare(handle=handle, token_ids=pack(prompt), identity=pb.RequestIdentity(**identity))


def admits(*rows: tuple[int, int]) -> pb.Admits:
    handles, known = zip(*rows, strict=True)
    zeros = pack([0] * len(rows))
    return pb.Admits(handles=pack(handles), num_known_tokens=pack(known), num_watermark_blocks=zeros)


def admit(handle: int, prompt: Sequence[int], **identity: Any) -> dict[str, Any]:
    return {"declares": [declare(handle, prompt, **identity)], "admits": admits((handle, len(prompt)))}


def free(handle: int, epoch: int = 0) -> pb.Frees:
    return pb.Frees(handles=pack([handle]), epochs=pack([epoch]))


async def failure_of(call: Any) -> errors.Failure:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return errors.from_rpc_error(failed.value)
