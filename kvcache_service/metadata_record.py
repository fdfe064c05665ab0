"""How Redis holds what is known of the pools: keys, fields and values. Knows no Redis client.

`docs/metadata.md` shows every key for whoever reads them. In short, with KV for `kvcache_id` and POOL for a pool's id:

    octavo:kv:{KV}:pools           set     ids of the pools that are recorded
    octavo:kv:{KV}:public          hash    name of a public prefix -> token ids
    octavo:kv:{KV:POOL}:meta       hash    whose record this is, the last plan that it covers, and totals
    octavo:kv:{KV:POOL}:blocks     hash    block key -> its place and the committed blocks that hold it
    octavo:kv:{KV:POOL}:pins       hash    namespace and pin id -> until when, and the blocks
    octavo:kv:{KV:POOL}:tenants    hash    namespace -> its totals
    octavo:kv:{KV:POOL}:events     stream  what each write changed; ids are the numbers of the records
    octavo:kv:{KV:POOL}:staged:... hash    a snapshot being written; gone after a minute

All keys of a pool have one hash tag, so that they change together, in a Redis Cluster too. Numbers are little endian.
"""

import dataclasses
import hmac
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvcache_service.core.block import HASH_BYTES, hash_of
from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.pools import Pool
from kvcache_service.core.restore import PoolRecord, Position, RecordedBlock, RecordedPin
from kvcache_service.core.statistics import MissReason, TokenCounts
from kvcache_service.core.totals import Totals

SCHEMA = 2
NO_HASH = NO_NAMESPACE = bytes(HASH_BYTES)

_PLACE = struct.Struct("<16sI16s")  # parent hash, depth, namespace; the block ids follow
_EXPIRY = struct.Struct("<Q")  # milliseconds since 1970; the block ids follow
_COUNTS = struct.Struct("<4Q")
KEY_CHECKED = b"octavo: which namespace key is this"
TOTAL = "total_"  # how the fields of totals begin

_PAIR = struct.Struct("<HI")  # lengths of a field and its value, which follow

Pairs = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """Where a pool is."""

    meta: str
    blocks: str
    pins: str
    tenants: str
    events: str

    @property
    def all(self) -> tuple[str, ...]:
        return (self.meta, self.blocks, self.pins, self.tenants, self.events)


def pool_keys(kvcache_id: str, pool_id: str) -> PoolKeys:
    """The keys of a pool."""
    tagged = f"octavo:kv:{{{kvcache_id}:{pool_id}}}:"
    return PoolKeys(*(tagged + name for name in ("meta", "blocks", "pins", "tenants", "events")))


def staged_key(kvcache_id: str, pool_id: str, kvcache_incarnation: int) -> str:
    """Where a service writes a snapshot of a pool's blocks, before it puts it in its place."""
    return f"octavo:kv:{{{kvcache_id}:{pool_id}}}:staged:{kvcache_incarnation}"


def directory_key(kvcache_id: str) -> str:
    """Where the pools are listed."""
    return f"octavo:kv:{{{kvcache_id}}}:pools"


def public_key(kvcache_id: str) -> str:
    """Where the public prefixes are."""
    return f"octavo:kv:{{{kvcache_id}}}:public"


def key_check(namespace_key: bytes) -> bytes:
    """Tells whether two services derive namespaces under the same key; says nothing else of it."""
    return hmac.digest(namespace_key, KEY_CHECKED, "sha256")


def blob(pairs: Pairs) -> bytes:
    """Fields and values one after another; a value without bytes says that the field is gone."""
    parts: list[bytes] = []
    for field, value in pairs:
        parts += (_PAIR.pack(len(field), len(value)), field, value)
    return b"".join(parts)


def pairs(packed: bytes) -> Pairs:
    """What `blob` packed."""
    at = 0
    while at < len(packed):
        num_field_bytes, num_value_bytes = _PAIR.unpack_from(packed, at)
        at += _PAIR.size
        field = packed[at : at + num_field_bytes]
        at += num_field_bytes + num_value_bytes
        yield field, packed[at - num_value_bytes : at]


def facts(pool: Pool, position: Position, *, kvcache_incarnation: int, key_check: bytes) -> Pairs:
    """The fields of `meta` but `record`, which the write itself counts. `key_check` tells namespace keys apart."""
    values: dict[str, str | int | bytes] = {
        "schema": SCHEMA,
        "pool_id": pool.key.pool_id,
        "kvcache_incarnation": kvcache_incarnation,
        "namespace_key_check": key_check,
        "incarnation": pool.key.incarnation,
        "session": pool.key.session,
        "scheduler_incarnation": pool.scheduler_incarnation,
        "opening": position.opening,
        "step": position.step,
        "num_blocks": pool.manager.pool.num_blocks,
        **dataclasses.asdict(pool.fingerprint),
        **{f"{TOTAL}{name}": number for name, number in _named(totals(pool)).items()},
    }
    return [(name.encode(), _text(value)) for name, value in values.items()]


def totals(pool: Pool) -> Totals:
    """What was counted since the worker began, restarts of this service not regarded."""
    counted = Totals()
    counted.add(pool.manager)
    return counted


def place(pool: Pool, key: bytes) -> bytes:
    """Where a key lies and which committed blocks hold it, as of now; nothing if none does."""
    blocks = pool.manager.pool
    block_ids = blocks.committed_copies(key)
    if not block_ids:
        return b""
    first = block_ids[0]
    parent = blocks.parent(first)
    head = _PLACE.pack(
        NO_HASH if parent is None else hash_of(parent), blocks.depth(first), blocks.namespace(first) or NO_NAMESPACE
    )
    return head + array_bytes(block_ids)


def recorded_block(key: bytes, value: bytes) -> RecordedBlock:
    """What `place` said of a key."""
    parent, depth, namespace = _PLACE.unpack_from(value)
    return RecordedBlock(
        key,
        parent + key[HASH_BYTES:] if depth else None,
        depth,
        None if namespace == NO_NAMESPACE else namespace,
        struct.unpack_from(f"<{(len(value) - _PLACE.size) // 4}I", value, _PLACE.size),
    )


def pin_field(namespace: bytes | None, pin_id: str) -> bytes:
    """The field of a pin."""
    return (namespace or NO_NAMESPACE) + pin_id.encode()


def pin_value(block_ids: Iterable[int], expires_unix_s: float) -> bytes:
    """Until when a pin lasts, and what it keeps."""
    return _EXPIRY.pack(int(expires_unix_s * 1000)) + array_bytes(block_ids)


def recorded_pin(field: bytes, value: bytes, *, unix_s: float, now_s: float) -> RecordedPin:
    """A pin, with what is left of its time from `now_s` on; `unix_s` is the same moment by the calendar."""
    (expires_unix_ms,) = _EXPIRY.unpack_from(value)
    namespace = field[:HASH_BYTES]
    return RecordedPin(
        namespace=None if namespace == NO_NAMESPACE else namespace,
        pin_id=field[HASH_BYTES:].decode(),
        block_ids=numbers(value[_EXPIRY.size :]),
        expires_s=now_s + expires_unix_ms / 1000 - unix_s,
    )


def counts(tokens: TokenCounts) -> bytes:
    """Totals of a namespace."""
    return _COUNTS.pack(
        tokens.num_query_tokens, tokens.num_hit_tokens, tokens.num_preempted_query_tokens,
        tokens.num_preempted_hit_tokens,
    )  # fmt: skip


def recorded_counts(value: bytes) -> TokenCounts:
    """What `counts` said of a namespace."""
    return TokenCounts(*_COUNTS.unpack(value))


def recorded_pool(meta: Mapping[bytes, bytes]) -> PoolRecord | None:
    """The record of a pool without its blocks, pins and tenants; None if there is none, or one of another schema."""
    if meta.get(b"schema") != str(SCHEMA).encode():
        return None
    return PoolRecord(
        pool_id=meta[b"pool_id"].decode(),
        incarnation=int(meta[b"incarnation"]),
        scheduler_incarnation=int(meta[b"scheduler_incarnation"]),
        position=Position(int(meta[b"opening"]), int(meta[b"step"])),
        num_blocks=int(meta[b"num_blocks"]),
        fingerprint=Fingerprint(
            hash_scheme=int(meta[b"hash_scheme"]),
            model_digest=meta.get(b"model_digest", b""),
            tokenizer_digest=meta.get(b"tokenizer_digest", b""),
            block_size=int(meta[b"block_size"]),
            kv_dtype=meta.get(b"kv_dtype", b"").decode(),
            kv_layout=meta.get(b"kv_layout", b"").decode(),
        ),
        totals=_recorded_totals(meta),
    )


def packed_prefixes(prefixes: Mapping[str, Sequence[int]]) -> dict[str, bytes]:
    """Public prefixes as they are written."""
    return {name: array_bytes(token_ids) for name, token_ids in prefixes.items()}


def array_bytes(values: Iterable[int]) -> bytes:
    """Numbers as uint32."""
    column = list(values)
    return struct.pack(f"<{len(column)}I", *column)


def numbers(packed: bytes) -> "array[int]":
    """What `array_bytes` packed."""
    return array("I", struct.unpack(f"<{len(packed) // 4}I", packed))


def _named(counted: Totals) -> dict[str, int]:
    """Totals by the names of their fields."""
    return {
        "query_tokens": counted.num_query_tokens,
        "hit_tokens": counted.num_hit_tokens,
        "preempted_query_tokens": counted.num_preempted_query_tokens,
        "preempted_hit_tokens": counted.num_preempted_hit_tokens,
        "near_misses": counted.num_near_misses,
        "evicted_blocks": counted.num_evicted_blocks,
        "pins_given_way": counted.num_pins_given_way,
        **{f"misses_{reason.value}": number for reason, number in counted.misses.items()},
    }


def _recorded_totals(meta: Mapping[bytes, bytes]) -> Totals:
    """What `_named` said; 0 for a field that the writer did not know."""

    def number(name: str) -> int:
        return int(meta.get(f"{TOTAL}{name}".encode(), 0))

    return Totals(
        num_query_tokens=number("query_tokens"),
        num_hit_tokens=number("hit_tokens"),
        num_preempted_query_tokens=number("preempted_query_tokens"),
        num_preempted_hit_tokens=number("preempted_hit_tokens"),
        num_near_misses=number("near_misses"),
        num_evicted_blocks=number("evicted_blocks"),
        num_pins_given_way=number("pins_given_way"),
        misses={reason: number(f"misses_{reason.value}") for reason in MissReason},
    )


def _text(value: str | int | bytes) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
