"""What a worker says of itself: its model, its fingerprint, and the incarnation of its K/V memory."""

import hashlib
import json
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HASH_SCHEME = 1  # of block hashes, docs/block-hash.md

_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be equal before two workers may share block hashes; the scheduler compares field by field."""

    hash_scheme: int
    model_digest: bytes
    tokenizer_digest: bytes
    block_size: int
    kv_dtype: str
    kv_layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Everything of a worker that does not change while it lives."""

    worker_id: str
    model_name: str
    fingerprint: Fingerprint
    max_model_len: int
    vocab_size: int
    num_blocks: int
    max_num_batched_tokens: int
    device: str
    dtype: str
    attention_backend: str
    weight_bytes: int
    kv_cache_bytes: int


def new_incarnation() -> int:
    """A number that no K/V memory had before."""
    return secrets.randbits(63) | 1


def model_digest(config_json: Path, weight_files: list[Path], *, dtype: str) -> bytes:
    """SHA-256 over the numerics, the configuration and, per weight file, its name, size, head and 64 samples of it.

    K/V that was computed in other numbers is other K/V, whatever type it is kept in: workers that differ in `dtype`
    share none.

    Reads under half a megabyte a file, so that a start does not wait for it. Weights that differ only between the
    samples look equal; the sizes, the tensor index in the head and every fine-tune seen in practice do not.
    """
    configuration = json.loads(config_json.read_bytes())
    digest = hashlib.sha256(f"{dtype}\0{json.dumps(configuration, sort_keys=True)}".encode())
    for path in sorted(weight_files):
        size = path.stat().st_size
        digest.update(path.name.encode() + struct.pack("<Q", size))
        for sample in _samples(path, size):
            digest.update(sample)
    return digest.digest()


def _samples(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(16 * _SAMPLE_BYTES)
        for i in range(1, _NUM_SAMPLES + 1):
            file.seek(max(0, i * size // _NUM_SAMPLES - _SAMPLE_BYTES))
            yield file.read(_SAMPLE_BYTES)
