"""What Redis does not know of a pool yet, and the writes that tell it, piece by piece. Knows no Redis client.

A record names the last plan that it covers. What it says of a block may be younger than that, never older: a block
that a later plan gave out is known to whoever restores, and one that no later plan gave out still holds what it held.
So changes may be written in pieces as long as the plan is named with the last of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvcache_service import metadata_record as record
from kvcache_service import metadata_scripts as scripts
from kvcache_service.core.block import block_key
from kvcache_service.core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    CopyDropped,
    Event,
    PinEnded,
    PinSet,
)
from kvcache_service.core.pins import PinName
from kvcache_service.core.pools import Pool
from kvcache_service.core.restore import Position

EXPIRY_S = 24 * 3600  # of a pool's keys after the last write
STAGED_EXPIRY_S = 60
MAX_EVENTS = 512  # in the stream of a pool
PIECE_KEYS = 256  # written at a time, so that no write holds up a step for long
MIN_NOTED_KEYS = 65_536  # keys that may wait at least; above twice the pool's blocks everything is written anew


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: what the keys and the records of all its pools have in common."""

    kvcache_id: str
    kvcache_incarnation: int
    key_check: bytes  # tells whether a namespace key is the one that the record was written under
    unix_time: Callable[[float], float]  # the clock that pins are told the time in -> seconds since 1970


@dataclass(frozen=True, slots=True)
class Write:
    """One call of a script."""

    script: str
    keys: Sequence[str]
    args: Sequence[bytes | int]


class Journal:
    """The changes of one opening of a pool that are not written yet. Bounded: too many, and all is written anew."""

    def __init__(self, pool: Pool, author: Author, *, now_s: float) -> None:
        """Everything is to be written."""
        self.pool = pool
        self.num_noted = 1  # changes so far, the opening included
        self.num_written = 0  # those of them that are known to be written
        self.in_hand: Write | None = None  # what was taken to be written and is not answered
        self.num_in_hand = 0  # keys in it
        self._author = author
        self._keys = record.pool_keys(author.kvcache_id, pool.key.pool_id)
        self._staged_key = record.staged_key(author.kvcache_id, pool.key.pool_id, author.kvcache_incarnation)
        self._record = 0  # number of the last record that we know of
        self._max_keys = max(MIN_NOTED_KEYS, 2 * pool.manager.pool.num_blocks)
        self._noted_keys: dict[bytes, None] = {}
        self._noted_pins: dict[PinName, None] = {}
        self._written_counts: dict[bytes | None, bytes] = {}
        self._pieces: deque[bytes] = deque()  # keys of the delta or snapshot that is being written
        self._position: Position | None = None  # the plan that it will name; None = nothing is being written
        self._num_covered = 0  # changes that it covers
        self._is_snapshot = True
        self._num_staged = 0
        self._is_last = False  # what is in hand is the last of its delta or snapshot
        self._since_s: float | None = now_s  # when the oldest change happened that is not known to be written
        self._newer_since_s: float | None = None  # the same of those that the writes in hand do not cover

    @property
    def is_clean(self) -> bool:
        """Whether Redis knows everything."""
        return self.num_written == self.num_noted

    @property
    def is_unfinished(self) -> bool:
        """Whether a delta or a snapshot has been begun, or a snapshot is needed."""
        return self._position is not None or (self._is_snapshot and not self.is_clean)

    @property
    def num_pending(self) -> int:
        """Keys that are to be written, and the record itself."""
        return len(self._noted_keys) + len(self._pieces) + len(self._noted_pins) + (not self.is_clean)

    def lag_s(self, now_s: float) -> float:
        """Age of the oldest change that is not known to be written."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def note(self, events: Iterable[Event], now_s: float) -> None:
        """A plan was applied or something was forgotten or pinned, and these events came of it."""
        self.num_noted += 1
        self._since_s = now_s if self._since_s is None else self._since_s
        self._newer_since_s = now_s if self._newer_since_s is None else self._newer_since_s
        if self._is_snapshot and self._position is None:
            return  # everything will be looked at anyway
        for event in events:
            match event:
                case BlocksStored():
                    keys = (block_key(stored, event.group_index) for stored in event.block_hashes)
                    self._noted_keys.update(dict.fromkeys(keys))
                case BlockRemoved() | CopyDropped():
                    self._noted_keys[event.key] = None
                case PinSet() | PinEnded():
                    self._noted_pins[PinName(event.namespace, event.pin_id)] = None
                case AllBlocksCleared():
                    self.start_over(now_s)
        if len(self._noted_keys) > self._max_keys:
            self.start_over(now_s)

    def start_over(self, now_s: float) -> None:
        """What is written can no longer be trusted: write everything."""
        self._noted_keys.clear()
        self._noted_pins.clear()
        self._pieces.clear()
        self._position = None
        self._is_snapshot = True
        self.in_hand = None
        self.num_noted += self.is_clean
        self._since_s = now_s if self._since_s is None else self._since_s
        self._newer_since_s = self._since_s

    def take(self) -> Write | None:
        """Take the next piece of what is to be written in hand, as the pool is now; None if there is nothing.

        It may be written, too, if everything is to be written anew before it is.
        """
        if self._position is None:
            if self.is_clean:
                return None
            self._begin()
        self.in_hand = self._next_of_snapshot() if self._is_snapshot else self._next_changes()
        return self.in_hand

    def done(self, answer: int, now_s: float) -> bool:
        """What was in hand was answered; false if Redis holds another record than was written before."""
        if self.in_hand is None:
            return True  # everything is to be written anew anyway
        self.in_hand = None
        if answer == 0:
            self.start_over(now_s)
            return False
        if self._is_last or not self._is_snapshot:
            self._record = answer
        if self._is_last:
            self._position = None
            self._is_snapshot = False
            self.num_written = self._num_covered
            self._since_s = self._newer_since_s
        return True

    def _begin(self) -> None:
        """Begin a delta or a snapshot; it covers what has happened until now."""
        self._cover()
        self._num_staged = 0
        self._pieces = deque(self.pool.manager.pool.cache if self._is_snapshot else self._noted_keys)
        self._noted_keys.clear()

    def _cover(self) -> None:
        self._position = self.pool.position
        self._num_covered = self.num_noted
        self._newer_since_s = None

    def _next_of_snapshot(self) -> Write:
        """Stage the blocks; then put them in place with what changed meanwhile, if that is little."""
        self._is_last = False
        while self._pieces:
            pairs = [(key, value) for key, value in self._next_pairs() if value]
            self.num_in_hand = len(pairs)
            if pairs:
                self._num_staged += 1
                args = (int(self._num_staged == 1), STAGED_EXPIRY_S, record.blob(pairs))
                return Write(scripts.STAGE, [self._staged_key], args)
        changed: list[tuple[bytes, bytes]] = []
        if len(self._noted_keys) <= PIECE_KEYS:
            changed = [(key, record.place(self.pool, key)) for key in self._noted_keys]
            self._noted_keys.clear()
            self._cover()
        self.num_in_hand = len(changed)
        self._noted_pins.clear()
        self._written_counts.clear()
        pins = list(self.pool.manager.pins)
        keys = (*self._keys.all, self._staged_key)
        self._is_last = True
        return Write(scripts.PUT_SNAPSHOT, keys, (self._num_staged, *self._args(changed, pins)))

    def _next_changes(self) -> Write:
        """The plan that the record covers, and totals, go with the last piece."""
        pairs = self._next_pairs()
        self.num_in_hand = len(pairs)
        incarnation = self._author.kvcache_incarnation
        self._is_last = not self._pieces
        if self._is_last:
            pins = list(self._noted_pins)
            self._noted_pins.clear()
            return Write(scripts.WRITE_CHANGES, self._keys.all, (incarnation, *self._args(pairs, pins)))
        args = (incarnation, self._record, EXPIRY_S, MAX_EVENTS, b"", record.blob(pairs), b"", b"")
        return Write(scripts.WRITE_CHANGES, self._keys.all, args)

    def _next_pairs(self) -> list[tuple[bytes, bytes]]:
        keys = [self._pieces.popleft() for _ in range(min(PIECE_KEYS, len(self._pieces)))]
        return [(key, record.place(self.pool, key)) for key in keys]

    def _args(self, pairs: record.Pairs, pins: Iterable[PinName]) -> tuple[bytes | int, ...]:
        assert self._position is not None, "nothing is being written"
        meta = record.facts(
            self.pool,
            self._position,
            kvcache_incarnation=self._author.kvcache_incarnation,
            key_check=self._author.key_check,
        )
        blobs = [record.blob(each) for each in (meta, pairs, self._pin_pairs(pins), self._count_pairs())]
        return (self._record, EXPIRY_S, MAX_EVENTS, *blobs)

    def _pin_pairs(self, names: Iterable[PinName]) -> record.Pairs:
        held = self.pool.manager.pins
        for name in names:
            pin = held.get(name)
            value = b"" if pin is None else record.pin_value(pin.block_ids, self._author.unix_time(pin.expires_s))
            yield record.pin_field(name.namespace, name.pin_id), value

    def _count_pairs(self) -> record.Pairs:
        """Namespaces that were counted since the last write: the statistics keep the one counted last at the end."""
        counted, written = self.pool.manager.statistics.by_namespace, self._written_counts
        for namespace in reversed(counted):
            value = record.counts(counted[namespace])
            if written.get(namespace) == value:
                break
            written[namespace] = value
            yield namespace or record.NO_NAMESPACE, value
        if len(written) > len(counted):
            for forgotten in [namespace for namespace in written if namespace not in counted]:
                del written[forgotten]
                yield forgotten or record.NO_NAMESPACE, b""
