"""KV cache service: owns, for every worker, the block pool and the prefix cache."""

import secrets
from contextlib import nullcontext
from functools import partial

from kvcache_service.config import KVCacheConfig
from kvcache_service.core.identities import Identities
from kvcache_service.core.pools import Pools
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants
from kvcache_service.metadata_store import MetadataStore
from kvcache_service.metrics import PoolCollector
from kvcache_service.servicer import SERVICE_NAME, STATUSES, KVCacheServicer
from kvcache_service.watch import Watches
from octavo import config, logs, server, shutdown, telemetry
from octavo import metrics as exposition
from octavo.kvcache.v1.kvcache_pb2_grpc import add_KVCacheServiceServicer_to_server


async def main() -> None:
    settings = config.load(KVCacheConfig, "KVCACHE")
    logs.configure("kvcache", level=settings.process.log_level, log_format=settings.process.log_format)
    namespace_key = settings.namespace_key.encode() or secrets.token_bytes(32)
    incarnation = secrets.randbits(63)
    pools = Pools(caching=settings.enable_prefix_caching, max_pinned_share=settings.max_pinned_share)
    with telemetry.configured("kvcache"):
        async with (
            MetadataStore.connect(
                settings.redis_url,
                pools,
                kvcache_incarnation=incarnation,
                kvcache_id=settings.kvcache_id,
                namespace_key=namespace_key,
            ) as store,
            exposition.serve(settings.metrics_port) if settings.metrics_port else nullcontext(),
        ):
            exposition.REGISTRY.register(PoolCollector(pools, store))
            identities = Identities(Tenants(namespace_key), PublicPrefixes())
            await store.restore(identities.public)
            watches = Watches(pools, incarnation=incarnation)
            servicer = KVCacheServicer(pools, store, incarnation=incarnation, identities=identities, watches=watches)
            register = partial(add_KVCacheServiceServicer_to_server, servicer)
            async with servicer.keeping_time():
                await server.serve(
                    settings.listen_addr,
                    register,
                    STATUSES,
                    service_names=[SERVICE_NAME],
                    drain=servicer.leave,
                    drain_timeout_s=settings.process.drain_timeout_s,
                )


if __name__ == "__main__":
    shutdown.run(main)
