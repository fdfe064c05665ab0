"""Names the content of a block: a chain of hashes over a canonical encoding, the same in every process and language.

`docs/block-hash.md` specifies the bytes and holds test vectors. Knows no block ids.
"""

import hashlib
import hmac
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcache_service.core.block import HASH_BYTES, block_key
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras, encode_extras, first_plain_block
from kvcache_service.core.hash_parts import TAG_BLOCK, TAG_NAMESPACE, TAG_ROOT, TAG_TOKENS, bytes_part, part, text, uint

HASH_SCHEME = 1
TOKEN_BYTES = 4

_PARENT_HEAD = bytes_part(bytes(HASH_BYTES))[:-HASH_BYTES]
_HEAD_BYTES = len(_PARENT_HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What two processes must agree on before they may share block hashes."""

    hash_scheme: int = HASH_SCHEME
    model_digest: bytes = b""
    tokenizer_digest: bytes = b""
    block_size: int = 16
    kv_dtype: str = ""
    kv_layout: str = ""


def root_hash(fingerprint: Fingerprint) -> bytes:
    """The parent of every first block under this fingerprint."""
    parts = (
        uint(fingerprint.hash_scheme),
        bytes_part(fingerprint.model_digest),
        bytes_part(fingerprint.tokenizer_digest),
        uint(fingerprint.block_size),
        text(fingerprint.kv_dtype),
        text(fingerprint.kv_layout),
    )
    return _digest(part(TAG_ROOT, b"".join(parts)))


def namespace_of(tenant: str, namespace_key: bytes) -> bytes | None:
    """The namespace of an authenticated tenant; None, outside all namespaces, when nobody was authenticated."""
    if not tenant:
        return None
    return hmac.digest(namespace_key, part(TAG_NAMESPACE, text(tenant)), "sha256")[:HASH_BYTES]


def block_hash(parent: bytes, token_ids: Sequence[int], extras: bytes = b"") -> bytes:
    """The hash of one full block; `extras` are its encoded extras."""
    return _hash_block(parent, _little_endian(array("I", token_ids)), extras)


class HashChain:
    """Names the full blocks of one sequence, one after another, each once."""

    __slots__ = ("_block_size", "_extras", "_first_plain", "_root")

    def __init__(self, root: bytes, block_size: int, extras: Extras = NO_EXTRAS) -> None:
        self._root = root
        self._block_size = block_size
        self._extras = extras
        self._first_plain = first_plain_block(extras)

    def extend(self, keys: list[bytes], token_ids: "array[int]") -> None:
        """Append the keys of the full blocks that `keys` does not name yet."""
        if len(token_ids) >= (len(keys) + 1) * self._block_size:
            keys.extend(self.keys(token_ids, keys))

    def keys(self, token_ids: "array[int]", known: Sequence[bytes] = ()) -> Iterator[bytes]:
        """The keys of the full blocks behind those that are `known`, computed as they are asked for."""
        first, end = len(known), len(token_ids) // self._block_size
        if first == end:
            return
        num_bytes = self._block_size * TOKEN_BYTES
        tokens = _little_endian(token_ids[first * self._block_size : end * self._block_size])
        parent = known[-1][:HASH_BYTES] if known else self._root
        for index in range(first, end):
            offset = (index - first) * num_bytes
            is_plain = self._first_plain is not None and index >= self._first_plain
            extras = b"" if is_plain else encode_extras(self._extras, index, self._block_size)
            parent = _hash_block(parent, tokens[offset : offset + num_bytes], extras)
            yield block_key(parent)


def _hash_block(parent: bytes, tokens: bytes, extras: bytes) -> bytes:
    """SHA-256 over block{parent, tokens, extras...}; the heads are written out here, because this is the hot path."""
    num_bytes = len(tokens)
    body = 2 * _HEAD_BYTES + HASH_BYTES + num_bytes + len(extras)
    head = TAG_BLOCK + body.to_bytes(4, "little") + _PARENT_HEAD
    return _digest(head + parent + TAG_TOKENS + num_bytes.to_bytes(4, "little") + tokens + extras)


def _little_endian(token_ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids.tobytes()


def _digest(encoded: bytes) -> bytes:
    return hashlib.sha256(encoded).digest()[:HASH_BYTES]
