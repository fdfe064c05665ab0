"""The canonical encoding under every hash: typed, length-prefixed parts. `docs/block-hash.md` is its specification.

A part is a tag of one byte, the length of its payload as uint32, and the payload; all numbers are little endian.
"""

TAG_UINT = b"\x01"
TAG_INT = b"\x02"
TAG_TEXT = b"\x03"
TAG_BYTES = b"\x04"
TAG_TOKENS = b"\x05"

# Parts made of parts: what is hashed.
TAG_ROOT = b"\x10"
TAG_BLOCK = b"\x11"
TAG_NAMESPACE = b"\x12"

# Parts made of parts: what a block hashes under, besides its tokens.
TAG_IN_NAMESPACE = b"\x20"
TAG_SALT = b"\x21"
TAG_ADAPTER = b"\x22"
TAG_ITEM = b"\x23"
TAG_EMBEDDINGS = b"\x24"


def part(tag: bytes, payload: bytes) -> bytes:
    """One part."""
    return tag + len(payload).to_bytes(4, "little") + payload


def uint(value: int) -> bytes:
    """A number that is never negative, as 8 bytes."""
    return part(TAG_UINT, value.to_bytes(8, "little"))


def signed(value: int) -> bytes:
    """A number that may be negative, as 8 bytes of two's complement."""
    return part(TAG_INT, value.to_bytes(8, "little", signed=True))


def text(value: str) -> bytes:
    """A string, as UTF-8."""
    return part(TAG_TEXT, value.encode())


def bytes_part(value: bytes) -> bytes:
    """Bytes as they are."""
    return part(TAG_BYTES, value)
