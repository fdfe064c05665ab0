"""What Redis holds of a pool, and which parts of that have changed since it was last written. Knows no Redis client.

Keys, all of one pool in one hash slot, gone a day after the last write:

    octavo:kv:{POOL}:meta    hash   schema, pool_id, kvcache_incarnation, record (number of the last write),
                                    incarnation, session, step (the last plan that this record covers), num_blocks,
                                    hash_scheme, model_digest, tokenizer_digest, block_size, kv_dtype, kv_layout
    octavo:kv:{POOL}:blocks  hash   block key (16 bytes of hash, group index as uint32) -> block ids as uint32,
                                    first inserted first; committed blocks only, so at most num_blocks fields
    octavo:kv:{POOL}:staged  hash   a snapshot being written; gone after a minute

Numbers in keys and values of `blocks` are little endian. Both hashes change in one transaction, so that a reader that
takes `meta` and `blocks` together sees the state right after plan `step`. A block that a later plan gave out may hold
something else by now: whoever restores must know those plans.
"""

import dataclasses
import struct
from collections.abc import Iterable

from kvcache_service.core.block import block_key
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, BlocksStored, CopyDropped, Event
from kvcache_service.core.pools import Pool

SCHEMA = 1
EMPTY_KEY = b"empty"  # shorter than any block key
MAX_CHANGED_KEYS = 2048  # above it a snapshot, which is written piece by piece, holds up the event loop less


def meta_key(pool_id: str) -> str:
    """Where the facts of a pool are."""
    return f"octavo:kv:{{{pool_id}}}:meta"


def blocks_key(pool_id: str) -> str:
    """Where its committed blocks are."""
    return f"octavo:kv:{{{pool_id}}}:blocks"


def staged_key(pool_id: str) -> str:
    """Where a snapshot of its committed blocks is being written."""
    return f"octavo:kv:{{{pool_id}}}:staged"


def facts(pool: Pool, kvcache_incarnation: int, record: int) -> dict[str, str | int | bytes]:
    """The fields of the meta hash, as of now."""
    return {
        "schema": SCHEMA,
        "pool_id": pool.key.pool_id,
        "kvcache_incarnation": kvcache_incarnation,
        "record": record,
        "incarnation": pool.key.incarnation,
        "session": pool.key.session,
        "step": pool.step,
        "num_blocks": pool.manager.pool.num_blocks,
        **dataclasses.asdict(pool.fingerprint),
    }


def placements(pool: Pool, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
    """Which committed blocks hold each key, as of now; None where there is none any more."""
    found: dict[bytes, bytes | None] = {}
    for key in keys:
        block_ids = pool.manager.pool.committed_copies(key)
        found[key] = struct.pack(f"<{len(block_ids)}I", *block_ids) if block_ids else None
    return found


class Changes:
    """The keys of one pool whose placement is not written yet. Bounded: too many, and everything is written anew."""

    __slots__ = ("_since_s", "_writing_since_s", "keys", "needs_snapshot")

    def __init__(self, now_s: float) -> None:
        """Everything is to be written."""
        self.keys: set[bytes] = set()
        self.needs_snapshot = True
        self._since_s: float | None = now_s  # when the oldest change happened that nobody is writing
        self._writing_since_s: float | None = None  # when the oldest happened that is being written

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self._since_s is None

    def lag_s(self, now_s: float) -> float:
        """Age of the oldest change that is not known to be written."""
        oldest_s = self._since_s if self._writing_since_s is None else self._writing_since_s
        return 0.0 if oldest_s is None else now_s - oldest_s

    def note(self, events: Iterable[Event], now_s: float) -> None:
        """A plan was applied, and these events came of it."""
        for event in events:
            match event:
                case BlocksStored():
                    self.keys.update(block_key(stored, event.group_index) for stored in event.block_hashes)
                case AllBlocksCleared():
                    self.start_over(now_s)
                case BlockRemoved() | CopyDropped():
                    self.keys.add(block_key(event.block_hash, event.group_index))
        if len(self.keys) > MAX_CHANGED_KEYS:
            self.start_over(now_s)
        if self._since_s is None:
            self._since_s = now_s

    def start_over(self, now_s: float) -> None:
        """What is written can no longer be trusted: write everything."""
        self.keys.clear()
        self.needs_snapshot = True
        if self._writing_since_s is not None:
            self._since_s, self._writing_since_s = self._writing_since_s, None
        if self._since_s is None:
            self._since_s = now_s

    def take(self) -> set[bytes]:
        """The keys to write now; what happens from here on is another change."""
        keys, self.keys = self.keys, set()
        self._writing_since_s, self._since_s = self._since_s, None
        return keys

    def written(self) -> None:
        """What was taken is written."""
        self._writing_since_s = None
