"""Prefixes of one pool that are kept from being evicted for a time: a pin holds a reference on each of its blocks.

A pin lasts until it is ended, its time is over, its namespace is erased, or it gives way to a request that could not
run otherwise. Knows the time only as it is told.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.errors import PinQuotaExceeded
from kvcache_service.core.events import PinEnd, PinEnded, PinSet

MAX_PINNED_SHARE = 0.25  # of a pool's usable blocks, for the pins of one tenant
MAX_PINNED_SHARE_OF_ALL = 0.5  # for the pins of all tenants together
MAX_NUM_PINS = 1024  # of one tenant


@dataclass(frozen=True, slots=True)
class PinName:
    """A pin id is chosen by a tenant and unique within its namespace."""

    namespace: bytes | None
    pin_id: str


@dataclass(frozen=True, slots=True)
class Pin:
    """What is kept, first block first, and until when."""

    block_ids: tuple[int, ...]
    expires_s: float


@dataclass(frozen=True, slots=True, order=True)
class _Expiry:
    """When a pin ends; of those that end together, the one set first ends first."""

    expires_s: float
    serial: int
    name: PinName = field(compare=False)


class Pins:
    """The pins of one pool."""

    __slots__ = ("_by_expiry", "_num_pins", "_pins", "_pool", "_serial", "_users", "max_pinned_share",
                 "num_given_way")  # fmt: skip

    def __init__(self, pool: BlockPool, max_pinned_share: float = MAX_PINNED_SHARE) -> None:
        self.num_given_way = 0
        self._pool = pool
        self.max_pinned_share = max_pinned_share
        self._pins: dict[PinName, Pin] = {}
        self._num_pins: Counter[bytes | None] = Counter()  # by namespace
        self._users: dict[bytes | None, Counter[int]] = {}  # by namespace: how many of its pins keep each block
        self._by_expiry: list[_Expiry] = []  # a heap; of a pin that ended or changed, older entries are dead
        self._serial = 0

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def next_expiry_s(self) -> float | None:
        """When the next pin ends; None while there is none."""
        first = self._first()
        return None if first is None else first.expires_s

    def __iter__(self) -> Iterator[PinName]:
        return iter(self._pins)

    def get(self, name: PinName) -> Pin | None:
        """The pin of this name."""
        return self._pins.get(name)

    def num_pinned_of(self, namespace: bytes | None) -> int:
        """Blocks that the pins of a tenant keep."""
        return len(self._users.get(namespace, ()))

    def kept(self) -> Iterator[tuple[bytes | None, Collection[int]]]:
        """Each tenant that has pins, and the blocks that they keep."""
        return iter(self._users.items())

    def check(self, name: PinName, block_ids: Sequence[int]) -> None:
        """Raise PinQuotaExceeded if this pin, in the place of the one of its name, would keep too much."""
        old = self._pins.get(name)
        if old is None and self._num_pins[name.namespace] >= MAX_NUM_PINS:
            raise PinQuotaExceeded(f"the tenant has {MAX_NUM_PINS} pins; end one first", limit=MAX_NUM_PINS)
        users, ending = self._users.get(name.namespace, Counter()), set(old.block_ids if old else ()) - {*block_ids}
        of_tenant = len(users) - sum(users[block_id] == 1 for block_id in ending)
        of_tenant += sum(block_id not in users for block_id in block_ids)
        _check_share(of_tenant, self.max_pinned_share, self._pool.num_blocks, whose="the tenant's pins")
        of_all = self._pool.num_pinned - sum(self._pool.num_pins(block_id) == 1 for block_id in ending)
        of_all += sum(self._pool.num_pins(block_id) == 0 for block_id in block_ids)
        _check_share(of_all, MAX_PINNED_SHARE_OF_ALL, self._pool.num_blocks, whose="all pins")

    def put(self, name: PinName, block_ids: Sequence[int], *, expires_s: float) -> None:
        """Keep these blocks in the place of what the pin of this name kept. Raises PinQuotaExceeded, with no change."""
        self.check(name, block_ids)
        old, new = self._pins.get(name), Pin(tuple(block_ids), expires_s)
        if old == new:
            return
        self._hold(name.namespace, block_ids)
        if old is not None:
            self._release(name.namespace, old.block_ids)
        self._num_pins[name.namespace] += old is None
        self._pins[name] = new
        self._note_expiry(name, expires_s)
        keys = [key for block_id in block_ids if (key := self._pool.key(block_id)) is not None]
        self._pool.tell(PinSet(namespace=name.namespace, pin_id=name.pin_id, keys=keys, expires_s=expires_s))

    def end(self, name: PinName, reason: PinEnd = PinEnd.UNPINNED) -> bool:
        """End a pin; false if there is none of this name."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self._num_pins[name.namespace] -= 1
        if not self._num_pins[name.namespace]:
            del self._num_pins[name.namespace]
        self._release(name.namespace, pin.block_ids)
        self._pool.tell(PinEnded(namespace=name.namespace, pin_id=name.pin_id, reason=reason))
        return True

    def expire(self, now_s: float) -> int:
        """End the pins whose time is over; how many."""
        num_ended = 0
        while (first := self._first()) is not None and first.expires_s <= now_s:
            num_ended += self.end(first.name, PinEnd.EXPIRED)
        return num_ended

    def give_way(self) -> bool:
        """End the pin that would end first; false if there is none."""
        first = self._first()
        if first is None:
            return False
        self.num_given_way += 1
        return self.end(first.name, PinEnd.GAVE_WAY)

    def end_namespace(self, namespace: bytes) -> int:
        """End every pin of a tenant; how many."""
        names = [name for name in self._pins if name.namespace == namespace]
        return sum(self.end(name, PinEnd.ERASED) for name in names)

    def end_lost(self) -> int:
        """End the pins that keep a block which has lost its name; how many."""
        names = [
            name for name, pin in self._pins.items() if any(self._pool.key(block) is None for block in pin.block_ids)
        ]
        return sum(self.end(name, PinEnd.LOST) for name in names)

    def _hold(self, namespace: bytes | None, block_ids: Sequence[int]) -> None:
        self._pool.pin(block_ids)
        self._users.setdefault(namespace, Counter()).update(block_ids)

    def _release(self, namespace: bytes | None, block_ids: Sequence[int]) -> None:
        """The deepest block first, so that it is evicted first."""
        self._pool.unpin(block_ids[::-1])
        users = self._users[namespace]
        users.subtract(block_ids)
        for block_id in block_ids:
            if not users[block_id]:
                del users[block_id]
        if not users:
            del self._users[namespace]

    def _note_expiry(self, name: PinName, expires_s: float) -> None:
        self._serial += 1
        heappush(self._by_expiry, _Expiry(expires_s, self._serial, name))
        if len(self._by_expiry) > 2 * len(self._pins) + MAX_NUM_PINS:
            live = {expiry.name: expiry for expiry in self._by_expiry if self._is_live(expiry)}
            self._by_expiry = list(live.values())
            heapify(self._by_expiry)

    def _is_live(self, expiry: _Expiry) -> bool:
        pin = self._pins.get(expiry.name)
        return pin is not None and pin.expires_s == expiry.expires_s

    def _first(self) -> _Expiry | None:
        """Of the pin that ends first; dead entries before it are dropped."""
        while self._by_expiry and not self._is_live(self._by_expiry[0]):
            heappop(self._by_expiry)
        return self._by_expiry[0] if self._by_expiry else None


def _check_share(num_blocks: int, share: float, pool_size: int, *, whose: str) -> None:
    limit = int(share * (pool_size - 1))
    if num_blocks > limit:
        raise PinQuotaExceeded(
            f"{whose} would keep {num_blocks} blocks of this pool; the limit is {limit}",
            num_blocks=num_blocks,
            limit=limit,
        )
