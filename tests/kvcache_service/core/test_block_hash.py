"""What a block is called: stable over processes and languages, and never shared by accident. Scenarios by number."""

import json
import os
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from kvcache_service.core.block_hash import Fingerprint, HashChain, block_hash, namespace_of, root_hash
from kvcache_service.core.hash_extras import (
    NO_EXTRAS,
    Adapter,
    Extras,
    ItemInBlock,
    MultimodalItem,
    PromptEmbeddings,
    encode_extras,
    items_in_range,
)
from tests.kvcache_service.core import hash_vectors
from tests.kvcache_service.rig import Rig, family

ROOT = bytes(16)
VECTORS = hash_vectors.load()
SEQUENCES = [(vector, sequence) for vector in VECTORS for sequence in vector["sequences"]]


def keys(token_ids: list[int], extras: Extras = NO_EXTRAS, *, block_size: int = 16) -> list[bytes]:
    return list(HashChain(ROOT, block_size, extras).keys(array("I", token_ids)))


def common(first: list[bytes], second: list[bytes]) -> int:
    return sum(1 for one, other in zip(first, second, strict=True) if one == other)


def test_scenario_19_each_hash_covers_its_parent():
    first, second = block_hash(ROOT, range(16)), block_hash(block_hash(ROOT, range(16)), range(16, 32))
    assert [key[:16] for key in keys(list(range(32)))] == [first, second]


def test_scenario_19_a_change_in_the_first_block_changes_all_later_hashes():
    assert common(keys(list(range(64))), keys([99, *range(1, 64)])) == 0
    assert common(keys(list(range(64))), keys([*range(63), 99])) == 3


def test_scenario_22_a_salt_keeps_prefixes_apart():
    rig = Rig(31)
    rig.declare(0, family("A", 59), Extras(salt="s1"))
    rig.alloc(0)
    prompt = family("A", 48) + family("B", 9)
    assert rig.hit(prompt, Extras(salt="s1"))[1] == 48
    assert rig.hit(prompt, Extras(salt="s2"))[1] == 0
    assert rig.hit(prompt)[1] == 0


def test_scenario_22_the_salt_is_an_extra_of_the_first_block_only():
    extras = Extras(salt="s1", namespace=b"n" * 16)
    assert encode_extras(extras, 0, 16)
    assert encode_extras(extras, 1, 16) == b""


def test_tenants_never_meet_and_a_salt_comes_on_top():
    key = b"secret"
    spaces = [namespace_of("a", key), namespace_of("b", key), namespace_of("a", b"other"), namespace_of("", key)]
    assert len(set(spaces)) == 4
    assert namespace_of("", key) is None
    prompt = family("A", 16)
    named = [keys(prompt, Extras(namespace=space, salt=salt))[0] for space in spaces for salt in ("", "s")]
    assert len(set(named)) == 8


def test_scenario_24_another_version_of_an_adapter_is_another_prefix():
    rig = Rig(31)
    rig.declare(0, family("A", 33), Extras(adapter=Adapter(name="a", content_digest=b"version 1")))
    rig.alloc(0)
    for digest, hit in ((b"version 1", 32), (b"version 2", 0)):
        assert rig.hit(family("A", 33), Extras(adapter=Adapter(name="a", content_digest=digest)))[1] == hit


def test_scenario_25_an_adapter_hashes_alike_wherever_and_whenever_it_was_loaded():
    adapters = [Adapter(name=name, content_digest=name.encode()) for name in ("a", "b", "c")]
    here = {adapter.name: keys(family("A", 32), Extras(adapter=adapter)) for adapter in adapters}
    there = {adapter.name: keys(family("A", 32), Extras(adapter=adapter)) for adapter in reversed(adapters)}
    assert here == there
    assert len({hashes[0] for hashes in here.values()}) == 3


def test_scenario_26_a_block_sees_its_part_of_each_image():
    items = (
        MultimodalItem(content_digest=b"aaa", offset=11, num_tokens=10),
        MultimodalItem(content_digest=b"bbb", offset=30, num_tokens=18),
    )
    assert [items_in_range(items, start, start + 16) for start in (0, 16, 32)] == [
        (ItemInBlock(b"aaa", 11),),
        (ItemInBlock(b"aaa", -5), ItemInBlock(b"bbb", 14)),
        (ItemInBlock(b"bbb", -2),),
    ]


def test_scenario_27_another_first_image_changes_every_later_hash():
    def hashes(first: bytes) -> list[bytes]:
        items = (
            MultimodalItem(content_digest=first, offset=3, num_tokens=5),
            MultimodalItem(content_digest=b"same", offset=20, num_tokens=5),
        )
        return keys(family("A", 32), Extras(items=items))

    assert common(hashes(b"one"), hashes(b"two")) == 0


def test_scenario_28_items_that_touch_a_range():
    items = (
        MultimodalItem(content_digest=b"h1", offset=0, num_tokens=5),
        MultimodalItem(content_digest=b"h2", offset=10, num_tokens=5),
    )
    assert [items_in_range(items, *edges) for edges in ((0, 5), (3, 8), (6, 10), (0, 15))] == [
        (ItemInBlock(b"h1", 0),),
        (ItemInBlock(b"h1", -3),),
        (),
        (ItemInBlock(b"h1", 0), ItemInBlock(b"h2", 10)),
    ]


def test_scenario_29_embeddings_change_the_blocks_that_they_differ_in():
    def hashes(changed: bytes) -> list[bytes]:
        embeddings = PromptEmbeddings(data=bytes(10) + changed * 10, bytes_per_token=2)
        return keys([0] * 10, Extras(embeddings=embeddings), block_size=5)

    one, two = hashes(b"\x01"), hashes(b"\x02")
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_typed_extras_with_equal_text_never_collide():
    extras = [
        Extras(salt="X"),
        Extras(namespace=b"X"),
        Extras(adapter=Adapter(name="X", content_digest=b"")),
        Extras(adapter=Adapter(name="", content_digest=b"X")),
        Extras(items=(MultimodalItem(content_digest=b"X", offset=0, num_tokens=1),)),
    ]
    assert len({keys(family("A", 16), extra)[0] for extra in extras}) == len(extras)


def test_neighbouring_texts_never_run_together():
    one = Extras(adapter=Adapter(name="ab", content_digest=b"c"))
    other = Extras(adapter=Adapter(name="a", content_digest=b"bc"))
    assert encode_extras(one, 0, 16) != encode_extras(other, 0, 16)


@pytest.mark.parametrize(
    "changed",
    [
        {"hash_scheme": 2},
        {"model_digest": b"other"},
        {"tokenizer_digest": b"m"},
        {"block_size": 32},
        {"kv_dtype": "bfloat16"},
        {"kv_layout": "other"},
    ],
)
def test_every_field_of_the_fingerprint_changes_the_root(changed: dict[str, object]):
    fields: dict[str, object] = {"model_digest": b"m", "kv_dtype": "float32", "kv_layout": "nb2hsd"}
    assert root_hash(Fingerprint(**fields)) != root_hash(Fingerprint(**(fields | changed)))  # type: ignore[arg-type]


def test_hashes_do_not_depend_on_the_process():
    code = "from tests.kvcache_service.core.test_block_hash import keys; print(keys(list(range(32)))[1].hex())"
    root = Path(__file__).parents[3]
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == keys(list(range(32)))[1].hex()


@pytest.mark.parametrize(("vector", "sequence"), SEQUENCES, ids=lambda value: value.get("name", ""))
def test_scenario_31_the_vectors_hold(vector: hash_vectors.Vector, sequence: hash_vectors.Vector):
    assert hash_vectors.root_of(vector).hex() == vector["root"]
    assert hash_vectors.hashes_of(vector, sequence) == sequence["hashes"]


def test_of_the_vectors_only_a_public_block_has_the_hash_of_another_the_plain_one():
    hashes = [block for _, sequence in SEQUENCES for block in sequence["hashes"]]
    named = {sequence["name"]: sequence["hashes"] for _, sequence in SEQUENCES}
    assert [block for block in set(hashes) if hashes.count(block) > 1] == [named["plain"][0]]
    assert named["tenant behind a public prefix"][0] == named["plain"][0]
    assert len(hashes) > 30


def test_the_namespace_is_an_extra_of_the_first_block_behind_the_public_ones_only():
    extras = Extras(namespace=b"n" * 16, namespace_block=2)
    assert [bool(encode_extras(extras, index, 16)) for index in range(5)] == [False, False, True, False, False]
    prompt = family("A", 64)
    assert common(keys(prompt), keys(prompt, extras)) == 2
    assert keys(prompt, extras)[2] != keys(prompt, Extras(namespace=b"m" * 16, namespace_block=2))[2]


@pytest.mark.skipif(
    shutil.which("node") is None and os.environ.get("CI") != "true",
    reason="the second implementation needs node; with CI=true it must be there",
)
def test_scenario_31_a_second_language_computes_the_same_bytes():
    script = Path(__file__).with_name("block_hash.mjs")
    done = subprocess.run(
        ["node", str(script), str(hash_vectors.FILE)], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stdout) == [
        {"root": vector["root"], "hashes": [sequence["hashes"] for sequence in vector["sequences"]]}
        for vector in VECTORS
    ]
