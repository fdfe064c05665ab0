"""Which recorded prefixes of a pool still hold what their names say, when a service that has just started opens it.

The record lags the pool. It names the last plan that it covers, and the scheduler says which blocks later plans gave
out: those hold something else by now. Knows no Redis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from kvcache_service.core.block import NULL_BLOCK_ID, group_of, hash_of
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.errors import PinQuotaExceeded
from kvcache_service.core.events import BlocksStored
from kvcache_service.core.pins import PinName
from kvcache_service.core.statistics import TokenCounts
from kvcache_service.core.totals import Totals

if TYPE_CHECKING:
    from kvcache_service.core.block_pool import BlockPool
    from kvcache_service.core.kv_cache_manager import KVCacheManager


class RestoreOutcome(Enum):
    """Whether a pool's cached prefixes came back."""

    NOT_NEEDED = "not_needed"  # the pool was open here: nothing was lost
    RESTORED = "restored"
    NOTHING_RECORDED = "nothing_recorded"  # nothing of this incarnation
    NO_ANSWER = "no_answer"  # nobody knows what is recorded
    TOO_OLD = "too_old"  # of another scheduler, or from before what this one remembers of its grants


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A plan of a worker incarnation: plans are numbered from 1 again whenever its pool is opened."""

    opening: int
    step: int


@dataclass(frozen=True, slots=True)
class GrantedBlocks:
    """What one plan gave out."""

    position: Position
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a scheduler opens a pool: which time that is (0 = nothing can be restored), and what it remembers."""

    scheduler_incarnation: int = 0
    number: int = 0
    granted_after: Position = Position(0, 0)
    granted: Sequence[GrantedBlocks] = ()  # every block given out after that plan


UNCOUNTED = Opening()


@dataclass(slots=True)
class RecordedBlock:
    """The committed blocks of one key."""

    key: bytes
    parent_key: bytes | None  # None at the start of a sequence
    depth: int  # blocks before it
    namespace: bytes | None
    block_ids: Sequence[int]  # first inserted first


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPin:
    """A prefix that was to be kept."""

    namespace: bytes | None
    pin_id: str
    block_ids: Sequence[int]
    expires_s: float  # in the clock that pins are told the time in


@dataclass(slots=True, kw_only=True)
class PoolRecord:
    """What is known of a pool of the service before this one, as it was right after the plan at `position`."""

    pool_id: str
    incarnation: int
    scheduler_incarnation: int
    position: Position
    num_blocks: int
    fingerprint: Fingerprint
    blocks: list[RecordedBlock] = field(default_factory=list)
    pins: list[RecordedPin] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    tenants: dict[bytes | None, TokenCounts] = field(default_factory=dict)  # the same of each namespace

    def erase(self, namespace: bytes) -> bool:
        """Forget what is recorded of a namespace; whether there was anything."""
        blocks = [block for block in self.blocks if block.namespace != namespace]
        pins = [pin for pin in self.pins if pin.namespace != namespace]
        is_changed = (len(blocks), len(pins)) != (len(self.blocks), len(self.pins))
        self.blocks, self.pins = blocks, pins
        return is_changed


class Records:
    """The records that a service found when it started; each is used at most once."""

    def __init__(self, records: Iterable[PoolRecord] = (), *, is_known: bool = True) -> None:
        """`is_known` is false when nobody could say what is recorded."""
        self._records = {record.pool_id: record for record in records}
        self.is_known = is_known

    def __len__(self) -> int:
        return len(self._records)

    def claim(self, pool_id: str) -> PoolRecord | None:
        """The record of a pool that is being opened; it is used up, whatever comes of it."""
        return self._records.pop(pool_id, None)

    def erase(self, namespace: bytes) -> list[str]:
        """Forget a namespace in every record; the pools whose record held something of it."""
        return [pool_id for pool_id, record in self._records.items() if record.erase(namespace)]

    def sweep(self) -> None:
        """Nobody claims the others any more."""
        self._records.clear()


def outcome(
    record: PoolRecord | None, opening: Opening, *, incarnation: int, num_blocks: int, fingerprint: Fingerprint
) -> RestoreOutcome:
    """Whether a record may be used for this pool: the same life of the worker, and no grant since is forgotten."""
    if record is None or record.incarnation != incarnation:
        return RestoreOutcome.NOTHING_RECORDED
    if (record.num_blocks, record.fingerprint) != (num_blocks, fingerprint):
        return RestoreOutcome.NOTHING_RECORDED
    is_same_scheduler = opening.number > 0 and opening.scheduler_incarnation == record.scheduler_incarnation
    if not is_same_scheduler or opening.granted_after > record.position:
        return RestoreOutcome.TOO_OLD
    return RestoreOutcome.RESTORED


def restore(manager: KVCacheManager, record: PoolRecord, opening: Opening) -> int:
    """Bring back what still holds, into a pool that has taken over its declared tables; how many blocks.

    The cached set stays prefix-closed: a block whose parent is gone is left out. A pin comes back as far as its blocks
    still hold what it was to keep.
    """
    if not manager.is_caching:
        return 0
    blocks = surviving(manager.pool, record.blocks, overwritten=_given_out_since(record.position, opening))
    manager.pool.restore(blocks)
    _tell_stored(manager.pool, blocks)
    _restore_pins(manager, record)
    return sum(len(block.block_ids) for block in blocks)


def restore_totals(manager: KVCacheManager, record: PoolRecord) -> None:
    """Go on counting where the record stopped."""
    counted, totals = manager.statistics, record.totals
    counted.num_query_tokens = totals.num_query_tokens
    counted.num_hit_tokens = totals.num_hit_tokens
    counted.num_preempted_query_tokens = totals.num_preempted_query_tokens
    counted.num_preempted_hit_tokens = totals.num_preempted_hit_tokens
    counted.num_near_misses = totals.num_near_misses
    counted.misses.update(totals.misses)
    counted.by_namespace.update(record.tenants)
    manager.pool.num_evicted = totals.num_evicted_blocks
    manager.pins.num_given_way = totals.num_pins_given_way


def surviving(pool: BlockPool, blocks: Iterable[RecordedBlock], *, overwritten: set[int]) -> list[RecordedBlock]:
    """What can be restored into this pool, parents before their children."""
    by_depth = sorted(blocks, key=attrgetter("depth"))
    lost = overwritten | _claimed_twice(by_depth)
    kept: list[RecordedBlock] = []
    keys: set[bytes] = set()
    for block in by_depth:
        parent_key = block.parent_key
        if parent_key is not None and parent_key not in keys and not pool.is_key_committed(parent_key):
            continue
        block_ids = [block_id for block_id in block.block_ids if block_id not in lost and _is_blank(pool, block_id)]
        if block_ids:
            keys.add(block.key)
            is_whole = len(block_ids) == len(block.block_ids)
            kept.append(block if is_whole else replace(block, block_ids=block_ids))
    return kept


def _is_blank(pool: BlockPool, block_id: int) -> bool:
    return NULL_BLOCK_ID < block_id < pool.num_blocks and pool.is_blank(block_id)


def _given_out_since(position: Position, opening: Opening) -> set[int]:
    return set(chain.from_iterable(granted.block_ids for granted in opening.granted if granted.position > position))


def _claimed_twice(blocks: Iterable[RecordedBlock]) -> set[int]:
    """Blocks recorded under two keys: at most one is true, and nobody knows which."""
    counted = Counter(chain.from_iterable(block.block_ids for block in blocks))
    return {block_id for block_id, number in counted.items() if number > 1}


def _tell_stored(pool: BlockPool, blocks: Iterable[RecordedBlock]) -> None:
    """Tell of the restored blocks, a run of one sequence at a time; their token ids are not known any more."""
    runs: list[list[RecordedBlock]] = []
    by_last: dict[bytes, list[RecordedBlock]] = {}
    for block in blocks:
        run = None if block.parent_key is None else by_last.pop(block.parent_key, None)
        if run is None:
            run = []
            runs.append(run)
        run.append(block)
        by_last[block.key] = run
        runs += [[replace(block, block_ids=(copy,))] for copy in block.block_ids[1:]]
    for run in runs:
        parent_key = run[0].parent_key
        pool.tell(
            BlocksStored(
                block_hashes=tuple(hash_of(block.key) for block in run),
                parent_hash=None if parent_key is None else hash_of(parent_key),
                token_ids=(),
                block_ids=tuple(block.block_ids[0] for block in run),
                group_index=group_of(run[0].key),
            )
        )


def _restore_pins(manager: KVCacheManager, record: PoolRecord) -> None:
    recorded = {block_id: block.key for block in record.blocks for block_id in block.block_ids} if record.pins else {}
    for pin in record.pins:
        kept = list(
            takewhile(lambda block_id: manager.pool.key(block_id) == recorded.get(block_id, b""), pin.block_ids)
        )
        if kept:
            with suppress(PinQuotaExceeded):  # the share of a tenant may be less now than it was
                manager.pins.put(PinName(pin.namespace, pin.pin_id), kept, expires_s=pin.expires_s)
