"""What a block hashes under besides its tokens: namespace, salt, adapter, multimodal items, prompt embeddings.

Every kind has a tag of its own, so that an adapter "X" and a salt "X" never meet.
"""

import hashlib
from dataclasses import dataclass

from kvcache_service.core.hash_parts import (
    TAG_ADAPTER,
    TAG_EMBEDDINGS,
    TAG_IN_NAMESPACE,
    TAG_ITEM,
    TAG_SALT,
    bytes_part,
    part,
    signed,
    text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter: its name, and the digest of its weights, which tells two versions of one name apart."""

    name: str
    content_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalItem:
    """An image or the like that stands for `num_tokens` placeholder tokens from `offset` on."""

    content_digest: bytes
    offset: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbeddings:
    """Embeddings given instead of token ids, `bytes_per_token` bytes for every position of the prompt."""

    data: bytes
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What the blocks of one sequence hash under.

    Full blocks of a public prefix hash outside the namespace, which is then a part of the first block behind them. A
    sequence with a salt shares nothing, so its namespace is a part of its very first block.
    """

    namespace: bytes | None = None
    namespace_block: int = 0
    salt: str = ""
    adapter: Adapter | None = None
    items: tuple[MultimodalItem, ...] = ()
    embeddings: PromptEmbeddings | None = None


@dataclass(frozen=True, slots=True)
class ItemInBlock:
    """A multimodal item as one block sees it; a negative offset says that it began in an earlier block."""

    content_digest: bytes
    offset: int


NO_EXTRAS = Extras()


def encode_extras(extras: Extras, index: int, block_size: int) -> bytes:
    """The encoded extras of block `index`; empty for a plain sequence.

    Namespace and salt are in one block each: the chain carries them on.
    """
    start, end = index * block_size, (index + 1) * block_size
    parts = []
    if index == extras.namespace_block and extras.namespace is not None:
        parts.append(part(TAG_IN_NAMESPACE, bytes_part(extras.namespace)))
    if index == 0 and extras.salt:
        parts.append(part(TAG_SALT, text(extras.salt)))
    if extras.adapter is not None:
        adapter = text(extras.adapter.name) + bytes_part(extras.adapter.content_digest)
        parts.append(part(TAG_ADAPTER, adapter))
    items = items_in_range(extras.items, start, end)
    parts += [part(TAG_ITEM, bytes_part(item.content_digest) + signed(item.offset)) for item in items]
    if extras.embeddings is not None:
        parts.append(_embeddings(extras.embeddings, start, end))
    return b"".join(parts)


def first_plain_block(extras: Extras) -> int | None:
    """The block from which on none has extras; None if any may have some."""
    if extras.adapter is not None or extras.embeddings is not None or extras.items:
        return None
    return extras.namespace_block + 1


def items_in_range(items: tuple[MultimodalItem, ...], start: int, end: int) -> tuple[ItemInBlock, ...]:
    """The items that overlap positions [start, end), in order, with their offsets from `start`."""
    return tuple(
        ItemInBlock(item.content_digest, item.offset - start)
        for item in items
        if item.offset < end and item.offset + item.num_tokens > start
    )


def _embeddings(embeddings: PromptEmbeddings, start: int, end: int) -> bytes:
    rows = embeddings.data[start * embeddings.bytes_per_token : end * embeddings.bytes_per_token]
    return part(TAG_EMBEDDINGS, bytes_part(hashlib.sha256(rows).digest()))
