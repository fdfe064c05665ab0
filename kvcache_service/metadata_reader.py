"""Reads from Redis what the service before this one has recorded. Changes nothing there."""

import hmac
import struct
import time
from array import array
from collections.abc import Mapping

from kvcache_service import metadata_record as record
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.restore import PoolRecord
from kvcache_service.redis_client import Client, answered
from octavo import logs

SCAN_FIELDS = 5000  # of a hash at a time, so that Redis serves others in between
MAX_READINGS = 3  # of a record that changes while it is read
UNREADABLE = (ValueError, KeyError, struct.error)  # what reading raises of something that this service never wrote

_log = logs.get(__name__)


async def public_prefixes(client: Client, kvcache_id: str) -> "dict[str, array[int]]":
    """The public prefixes by name; none, with a warning, if one of them cannot be read."""
    found: dict[bytes, bytes] = await answered(client.hgetall(record.public_key(kvcache_id)))
    try:
        prefixes = {name.decode(): record.numbers(packed) for name, packed in found.items()}
        PublicPrefixes(prefixes)  # refuses what nobody could have declared
    except UNREADABLE as error:
        _log.warning("public_prefixes_unreadable", problem=repr(error))
        return {}
    return prefixes


async def pool_ids(client: Client, kvcache_id: str) -> list[str]:
    """The pools that are recorded; a name that is no text was not written by this service."""
    found: set[bytes] = await answered(client.smembers(record.directory_key(kvcache_id)))
    return sorted(pool_id for member in found if "\ufffd" not in (pool_id := member.decode(errors="replace")))


async def pools(client: Client, kvcache_id: str, *, key_check: bytes, now_s: float) -> list[PoolRecord]:
    """Every record that can be read; one that cannot is left out, with a warning: better cold than wrong.

    What is in a namespace is left out if it was written under another namespace key.
    """
    found = list[PoolRecord]()
    for pool_id in await pool_ids(client, kvcache_id):
        keys = record.pool_keys(kvcache_id, pool_id)
        try:
            one = await pool(client, keys, key_check=key_check, now_s=now_s)
        except UNREADABLE as error:
            _log.warning("metadata_unreadable", pool_id=pool_id, problem=repr(error))
            continue
        if one is not None:
            found.append(one)
    return found


async def pool(client: Client, keys: record.PoolKeys, *, key_check: bytes, now_s: float) -> PoolRecord | None:
    """One record, as of one moment; None if there is none, or if it will not stay the same while it is read."""
    for _ in range(MAX_READINGS):
        meta: dict[bytes, bytes] = await answered(client.hgetall(keys.meta))
        found = record.recorded_pool(meta)
        if found is None:
            return None
        is_same_key = hmac.compare_digest(meta.get(b"namespace_key_check", b""), key_check)
        _take_blocks(found, await _hash(client, keys.blocks), is_same_key=is_same_key)
        _take_pins(found, await _hash(client, keys.pins), is_same_key=is_same_key, now_s=now_s)
        _take_tenants(found, await _hash(client, keys.tenants), is_same_key=is_same_key)
        if await answered(client.hget(keys.meta, "record")) == meta[b"record"]:
            return found
    return None


def _take_blocks(found: PoolRecord, fields: Mapping[bytes, bytes], *, is_same_key: bool) -> None:
    for key, value in fields.items():
        block = record.recorded_block(key, value)
        if is_same_key or block.namespace is None:
            found.blocks.append(block)


def _take_pins(found: PoolRecord, fields: Mapping[bytes, bytes], *, is_same_key: bool, now_s: float) -> None:
    unix_s = time.time()
    for field, value in fields.items():
        pin = record.recorded_pin(field, value, unix_s=unix_s, now_s=now_s)
        if pin.expires_s > now_s and (is_same_key or pin.namespace is None):
            found.pins.append(pin)


def _take_tenants(found: PoolRecord, fields: Mapping[bytes, bytes], *, is_same_key: bool) -> None:
    for field, value in fields.items():
        if is_same_key or field == record.NO_NAMESPACE:
            found.tenants[None if field == record.NO_NAMESPACE else field] = record.recorded_counts(value)


async def _hash(client: Client, key: str) -> dict[bytes, bytes]:
    """A hash, however large. One that grows or shrinks meanwhile shows some fields twice."""
    cursor, found = 0, dict[bytes, bytes]()
    while True:
        cursor, fields = await answered(client.hscan(key, cursor, count=SCAN_FIELDS))
        found.update(fields)
        if not cursor:
            return found
