"""What is done with cached prefixes over all pools at once: look up, pin, erase, forget. Knows no plans."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from kvcache_service.core.errors import BadPin, NothingCached, PinQuotaExceeded, UnknownPool
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.misses import miss_reason
from kvcache_service.core.pins import PinName
from kvcache_service.core.plan import Erased
from kvcache_service.core.pools import Pool, Pools
from kvcache_service.core.request import Identity
from kvcache_service.core.statistics import MissReason

MAX_PIN_ID_CHARS = 128
MAX_TTL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class PoolMatch:
    """What one pool holds of a prompt, and why not more."""

    pool_id: str
    num_cached_tokens: int
    miss_reason: MissReason


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """What one pool keeps of a prompt."""

    pool_id: str
    num_tokens: int


class CachedPrefixes:
    """The cached prefixes of every open pool."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def match(self, token_ids: "array[int]", identity: Identity) -> list[PoolMatch]:
        """What each pool holds of a prompt, committed; binds and changes nothing."""
        keys, num_hits = self._hits(token_ids, identity)
        return [
            PoolMatch(
                pool.key.pool_id,
                num_hits[pool.key.pool_id] * pool.manager.block_size,
                miss_reason(
                    pool.manager,
                    identity,
                    token_ids=token_ids,
                    keys=keys,
                    num_hits=num_hits[pool.key.pool_id],
                ),
            )
            for pool in self._pools
        ]

    def pin(
        self, name: PinName, token_ids: "array[int]", extras: Extras, *, now_s: float, ttl_s: float
    ) -> list[PinnedPrefix]:
        """Keep what is cached of a prompt, in every pool that has some of it. All or nothing.

        The same name again: the older pin ends, and the time starts anew.
        """
        _check_pin(name, token_ids, ttl_s)
        self.expire_pins(now_s)
        keys = self._keys(token_ids, extras)
        holding = [pool for pool in self._pools if pool.manager.num_committed(keys)]
        if not holding:
            raise NothingCached(
                f"no pool has a full block of these {len(token_ids)} tokens cached; run the prompt first"
            )
        for pool in holding:
            _check_quota(pool, name, keys)
        for pool in self._pools:
            pool.manager.pin(name, keys, expires_s=now_s + ttl_s)
        return [
            PinnedPrefix(pool.key.pool_id, pool.manager.num_committed(keys) * pool.manager.block_size)
            for pool in holding
        ]

    def unpin(self, name: PinName, *, now_s: float) -> bool:
        """End a pin before its time; false if there is none of this name."""
        self.expire_pins(now_s)
        ended = [pool.manager.unpin(name) for pool in self._pools]
        return any(ended)

    def expire_pins(self, now_s: float) -> int:
        """End the pins whose time is over; how many did."""
        return sum(pool.manager.expire_pins(now_s) for pool in self._pools)

    @property
    def next_pin_expiry_s(self) -> float | None:
        """When the next pin ends; None while there is none."""
        times = [pool.manager.next_pin_expiry_s for pool in self._pools]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def erase(self, namespace: bytes) -> Erased:
        """Forget everything that was cached in a namespace, in every pool; nothing of it is found from now on."""
        erased = [pool.manager.erase_namespace(namespace) for pool in self._pools]
        return Erased(
            num_blocks=sum(one.num_blocks for one in erased),
            num_pins=sum(one.num_pins for one in erased),
            num_requests=sum(one.num_requests for one in erased),
        )

    def reset(self, pool_id: str) -> bool:
        """Forget the prefixes of one pool, or with an empty name of all; false if any of them was in use."""
        pools = {pool.key.pool_id: pool for pool in self._pools}
        if pool_id and pool_id not in pools:
            raise UnknownPool(f"pool {pool_id} is not open; open are {sorted(pools)}")
        named = [pools[pool_id]] if pool_id else list(pools.values())
        done = [pool.manager.reset_prefix_cache() for pool in named]  # every one, whatever the others say
        return all(done)

    def _hits(self, token_ids: "array[int]", identity: Identity) -> tuple[list[bytes], dict[str, int]]:
        """The keys of a prompt up to the first that no pool has, and how many each pool has of them."""
        num_hits = {pool.key.pool_id: 0 for pool in self._pools}
        keys: list[bytes] = []
        if identity.is_bypassing_cache:
            return keys, num_hits
        matching = list(self._pools)
        for key in matching[0].manager.chain(identity.extras).keys(token_ids[:-1]) if matching else ():
            keys.append(key)
            matching = [pool for pool in matching if pool.manager.pool.is_key_committed(key)]
            if not matching:
                break
            for pool in matching:
                num_hits[pool.key.pool_id] += 1
        return keys, num_hits

    def _keys(self, token_ids: "array[int]", extras: Extras) -> list[bytes]:
        """The keys of all full blocks of a prompt: the pools share one fingerprint, so one has the keys of all."""
        pool = next(iter(self._pools), None)
        return pool.manager.prefix_keys(token_ids, extras) if pool else []


def _check_pin(name: PinName, token_ids: Sequence[int], ttl_s: float) -> None:
    if not 1 <= len(name.pin_id) <= MAX_PIN_ID_CHARS:
        raise BadPin(f"pin_id has {len(name.pin_id)} characters; it has 1 to {MAX_PIN_ID_CHARS}", field="pin_id")
    if not 0 < ttl_s <= MAX_TTL_S:
        raise BadPin(f"ttl is {ttl_s:g} s; it is more than 0 and at most {MAX_TTL_S:g} s", field="ttl")
    if not token_ids:
        raise BadPin("there are no token_ids to keep", field="token_ids")


def _check_quota(pool: Pool, name: PinName, keys: Sequence[bytes]) -> None:
    try:
        pool.manager.check_pin(name, keys)
    except PinQuotaExceeded as exceeded:
        exceeded.metadata = {**exceeded.metadata, "pool_id": pool.key.pool_id}
        raise
