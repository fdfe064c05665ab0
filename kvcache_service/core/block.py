"""What a block is: a number, how many tokens fit, and the name under which its content can be found again.

Knows nothing of who holds a block; that is the pool's.
"""

# Block 0 is never given out, hashed, freed or counted. It stands for positions that need no storage.
NULL_BLOCK_ID = 0

HASH_BYTES = 16
GROUP_BYTES = 4


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill or begin."""
    return -(-num_tokens // block_size)


def block_key(block_hash: bytes, group_index: int = 0) -> bytes:
    """The name of a block's content: its hash, and the group of layers whose K/V it holds."""
    return block_hash + group_index.to_bytes(GROUP_BYTES, "little")


def hash_of(key: bytes) -> bytes:
    """The hash within a block key."""
    return key[:HASH_BYTES]


def group_of(key: bytes) -> int:
    """The group index within a block key."""
    return int.from_bytes(key[HASH_BYTES:], "little")
