"""The pools of all workers: which incarnation and session each is in, and which plans it has answered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from kvcache_service.core import restore
from kvcache_service.core.block_hash import HASH_SCHEME, Fingerprint, root_hash
from kvcache_service.core.errors import (
    BadPool,
    Conflict,
    FingerprintMismatch,
    OutOfOrder,
    StaleSession,
    UnknownPool,
)
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.pins import MAX_PINNED_SHARE
from kvcache_service.core.plan import DeclaredTable, Grants, Plan
from kvcache_service.core.restore import UNCOUNTED, Opening, PoolRecord, Position, Records, RestoreOutcome
from kvcache_service.core.totals import Totals

MAX_NUM_BLOCKS = 1 << 24
NUM_KEPT_ANSWERS = 2  # the scheduler has at most two plans that it may have to send again
NUM_REMEMBERED_INCARNATIONS = 1024  # of all pools together


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Which pool a message means, and which life of its worker."""

    pool_id: str
    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plan got, and a digest of the bytes that asked."""

    digest: bytes
    grants: Grants


@dataclass(frozen=True, slots=True)
class Restored:
    """What the last opening of a pool brought back."""

    outcome: RestoreOutcome
    num_blocks: int = 0


class Pool:
    """One worker incarnation's blocks, and the order of the plans for them."""

    __slots__ = (
        "_answers",
        "fingerprint",
        "key",
        "manager",
        "opening_num",
        "restored",
        "scheduler_incarnation",
        "step",
    )

    def __init__(self, key: PoolKey, fingerprint: Fingerprint, *, manager: KVCacheManager) -> None:
        self.key = key
        self.fingerprint = fingerprint
        self.manager = manager
        self.step = 0  # the last plan that was applied in this opening
        self.opening_num = 0
        self.scheduler_incarnation = 0
        self.restored = Restored(RestoreOutcome.NOT_NEEDED)
        self._answers: dict[int, Answer] = {}

    @property
    def position(self) -> Position:
        """The last plan that was applied."""
        return Position(self.opening_num, self.step)

    def reopen(self, key: PoolKey, tables: Sequence[DeclaredTable], opening: Opening) -> None:
        """Begin a session of the same incarnation: its tables are the only ones, its plans count from 1."""
        self.manager.adopt(tables)
        self.key = key
        self.step = 0
        self.opening_num = opening.number
        self.scheduler_incarnation = opening.scheduler_incarnation
        self.restored = Restored(RestoreOutcome.NOT_NEEDED)
        self._answers.clear()

    def restore(self, record: PoolRecord | None, opening: Opening, *, is_known: bool) -> None:
        """Bring back what the service before this one had recorded, after the tables in use were taken over."""
        outcome = restore.outcome(
            record,
            opening,
            incarnation=self.key.incarnation,
            num_blocks=self.manager.pool.num_blocks,
            fingerprint=self.fingerprint,
        )
        num_blocks = 0
        if record is None or outcome is RestoreOutcome.NOTHING_RECORDED:
            outcome = outcome if is_known else RestoreOutcome.NO_ANSWER
        else:
            restore.restore_totals(self.manager, record)
            if outcome is RestoreOutcome.RESTORED:
                num_blocks = self.manager.restore(record, opening)
        self.restored = Restored(outcome, num_blocks)

    def check_opening(self, opening_num: int) -> None:
        """Refuse what was under way while the pool was opened again; 0 is not compared."""
        if opening_num and opening_num != self.opening_num:
            raise StaleSession(
                f"opening {opening_num} of {_name(self.key)} is over; the pool was opened again ({self.opening_num})"
            )

    def plan_step(self, plan: Plan, digest: bytes) -> Grants:
        """Apply the next plan, or give the answer again that the same bytes got before."""
        if plan.step in self._answers:
            answer = self._answers[plan.step]
            if answer.digest != digest:
                raise Conflict(f"plan {plan.step} of pool {self.key.pool_id} was answered for other bytes")
            return answer.grants
        if plan.step != self.step + 1:
            raise OutOfOrder(f"plan {plan.step} came to pool {self.key.pool_id}, which waits for {self.step + 1}")
        grants = self.manager.plan_step(plan)
        self.step = plan.step
        self._answers[plan.step] = Answer(digest, grants)
        self._answers.pop(plan.step - NUM_KEPT_ANSWERS, None)
        return grants


class Pools:
    """Every open pool. They share one fingerprint: a worker with another one is refused, not missed silently."""

    def __init__(self, *, caching: bool = True, max_pinned_share: float = MAX_PINNED_SHARE) -> None:
        self._caching = caching
        self._max_pinned_share = max_pinned_share
        self.records = Records()  # of the service before this one
        self._pools: dict[str, Pool] = {}
        self._past = Totals()  # of pools that are over
        self._over: dict[tuple[str, int], None] = {}  # (pool id, incarnation) that are over; the oldest first

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def open(
        self,
        key: PoolKey,
        num_blocks: int,
        *,
        fingerprint: Fingerprint,
        tables: Sequence[DeclaredTable],
        opening: Opening = UNCOUNTED,
    ) -> Pool:
        """Open the pool of a worker incarnation, or open it again. All or nothing.

        The first opening here brings back what was recorded of this incarnation.
        """
        self._check(key, num_blocks, fingerprint)
        pool = self._pools.get(key.pool_id)
        if pool is not None and pool.key.incarnation == key.incarnation:
            _check_reopened(pool, key, num_blocks)
            if opening.scheduler_incarnation == pool.scheduler_incarnation and opening.number < pool.opening_num:
                pool.check_opening(opening.number)
            pool.reopen(key, tables, opening)
            return pool
        manager = KVCacheManager(
            num_blocks=num_blocks,
            block_size=fingerprint.block_size,
            root=root_hash(fingerprint),
            caching=self._caching,
            max_pinned_share=self._max_pinned_share,
        )
        opened = Pool(key, fingerprint, manager=manager)
        opened.reopen(key, tables, opening)
        opened.restore(self.records.claim(key.pool_id), opening, is_known=self.records.is_known)
        if pool is not None:
            self._remember(pool.key.pool_id, pool.key.incarnation)
            self._past.add(pool.manager)
        self._pools[key.pool_id] = opened
        return opened

    def close(self, pool_id: str, incarnation: int) -> bool:
        """End a worker incarnation: every block of it is void. A younger one is left alone."""
        self._remember(pool_id, incarnation)
        pool = self._pools.get(pool_id)
        if pool is None or pool.key.incarnation != incarnation:
            return False
        self._past.add(self._pools.pop(pool_id).manager)
        return True

    def get(self, key: PoolKey) -> Pool:
        """The pool that a plan means; raises UnknownPool or StaleSession if it is not open, or not in this session."""
        pool = self._pools.get(key.pool_id)
        if self._is_over(key) or (pool is not None and _is_older(key, pool.key)):
            raise StaleSession(f"session {key.session} of {_name(key)} is over")
        if pool is None or pool.key != key:
            raise UnknownPool(f"session {key.session} of {_name(key)} is not open; open the pool")
        return pool

    @property
    def totals(self) -> Totals:
        """What all pools have counted, those included that are over."""
        totals = replace(self._past, misses=dict(self._past.misses))
        for pool in self:
            totals.add(pool.manager)
        return totals

    def _check(self, key: PoolKey, num_blocks: int, fingerprint: Fingerprint) -> None:
        pool = self._pools.get(key.pool_id)
        if not key.pool_id:
            raise BadPool("a pool needs a pool_id")
        if not 2 <= num_blocks <= MAX_NUM_BLOCKS:
            raise BadPool(f"num_blocks of {_name(key)} is {num_blocks}; it must be 2 to {MAX_NUM_BLOCKS}")
        if fingerprint.block_size < 1:
            raise BadPool(f"block_size of {_name(key)} is {fingerprint.block_size}; it must be positive")
        if self._is_over(key) or (pool is not None and _is_older(key, pool.key)):
            raise StaleSession(f"session {key.session} of {_name(key)} is over; a worker starts a new incarnation")
        _check_scheme(fingerprint)
        for other in self._pools.values():
            is_replaced = other is pool and other.key.incarnation != key.incarnation
            if not is_replaced:
                _compare(fingerprint, other)

    def _is_over(self, key: PoolKey) -> bool:
        return (key.pool_id, key.incarnation) in self._over

    def _remember(self, pool_id: str, incarnation: int) -> None:
        self._over.setdefault((pool_id, incarnation))
        if len(self._over) > NUM_REMEMBERED_INCARNATIONS:
            del self._over[next(iter(self._over))]


def _name(key: PoolKey) -> str:
    return f"incarnation {key.incarnation} of pool {key.pool_id}"


def _is_older(key: PoolKey, current: PoolKey) -> bool:
    return key.incarnation == current.incarnation and key.session < current.session


def _check_reopened(pool: Pool, key: PoolKey, num_blocks: int) -> None:
    if num_blocks != pool.manager.pool.num_blocks:
        raise BadPool(
            f"{_name(key)} has {pool.manager.pool.num_blocks} blocks, not {num_blocks}; a pool keeps its size for the "
            "life of the incarnation"
        )


def _check_scheme(fingerprint: Fingerprint) -> None:
    if fingerprint.hash_scheme != HASH_SCHEME:
        raise FingerprintMismatch(
            f"hash_scheme is {fingerprint.hash_scheme}; this service hashes by scheme {HASH_SCHEME}",
            field="hash_scheme",
        )


def _compare(fingerprint: Fingerprint, pool: Pool) -> None:
    for field in fields(Fingerprint):
        asked, held = getattr(fingerprint, field.name), getattr(pool.fingerprint, field.name)
        if asked != held:
            shown = [value.hex() if isinstance(value, bytes) else value for value in (asked, held)]
            raise FingerprintMismatch(
                f"{field.name} is {shown[0]!r}; pool {pool.key.pool_id} has {shown[1]!r}, and pools share block hashes",
                field=field.name,
            )
