"""Reads block_hash_vectors.json, and hashes its sequences with our code.

`python -m tests.kvcache_service.core.hash_vectors` prints the file with the hashes that our code computes: for a new
case, or a new scheme. A hash that changes under the same scheme breaks every cache and every peer.
"""

import json
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcache_service.core.block import hash_of
from kvcache_service.core.block_hash import Fingerprint, HashChain, root_hash
from kvcache_service.core.hash_extras import Adapter, Extras, MultimodalItem, PromptEmbeddings
from kvcache_service.core.identities import Identities
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants

FILE = Path(__file__).with_name("block_hash_vectors.json")

Vector = dict[str, Any]


def load() -> list[Vector]:
    vectors: list[Vector] = json.loads(FILE.read_text(encoding="utf-8"))
    return vectors


def root_of(vector: Vector) -> bytes:
    fields = dict(vector["fingerprint"])
    digests = {name: bytes.fromhex(fields[name]) for name in ("model_digest", "tokenizer_digest")}
    return root_hash(Fingerprint(**(fields | digests)))


def hashes_of(vector: Vector, sequence: Vector) -> list[str]:
    block_size = vector["fingerprint"]["block_size"]
    chain = HashChain(root_of(vector), block_size, extras_of(sequence, block_size))
    return [hash_of(key).hex() for key in chain.keys(array("I", sequence["token_ids"]))]


def extras_of(sequence: Vector, block_size: int) -> Extras:
    adapter, embeddings = sequence.get("adapter"), sequence.get("embeddings")
    tenants = Tenants(bytes.fromhex(sequence.get("namespace_key", "")))
    public = PublicPrefixes({str(name): tokens for name, tokens in enumerate(sequence.get("public_prefixes", []))})
    extras = Identities(tenants, public).extras(
        sequence.get("tenant", ""),
        array("I", sequence["token_ids"]),
        salt=sequence.get("salt", ""),
        adapter=adapter and Adapter(name=adapter["name"], content_digest=bytes.fromhex(adapter["content_digest"])),
        block_size=block_size,
    )
    return replace(
        extras,
        items=tuple(
            MultimodalItem(
                content_digest=bytes.fromhex(item["content_digest"]),
                offset=item["offset"],
                num_tokens=item["num_tokens"],
            )
            for item in sequence.get("items", [])
        ),
        embeddings=embeddings
        and PromptEmbeddings(data=bytes.fromhex(embeddings["data"]), bytes_per_token=embeddings["bytes_per_token"]),
    )


def main() -> None:
    vectors = load()
    for vector in vectors:
        vector["root"] = root_of(vector).hex()
        for sequence in vector["sequences"]:
            sequence["hashes"] = hashes_of(vector, sequence)
    json.dump(vectors, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
