"""Prefixes that are the same for all tenants: declared, withdrawn, and found at the start of prompts."""

from array import array

import pytest

from kvcache_service.core import public_prefixes
from kvcache_service.core.errors import BadPrefix
from kvcache_service.core.hash_extras import NO_EXTRAS, Adapter
from kvcache_service.core.identities import Identities
from kvcache_service.core.public_prefixes import MAX_NAME_CHARS, PublicPrefixes
from kvcache_service.core.tenants import Tenants
from tests.kvcache_service.rig import Rig, family


def num_public(public: PublicPrefixes, prompt: list[int]) -> int:
    return public.num_public_blocks(array("I", prompt), 16)


def identities(**prefixes: list[int]) -> Identities:
    return Identities(Tenants(b"key"), PublicPrefixes(prefixes))


def test_the_full_blocks_that_a_prompt_shares_with_a_public_prefix_are_public():
    public = PublicPrefixes({"system": family("A", 40)})
    lengths = [15, 16, 31, 32, 40, 48]
    assert [num_public(public, family("A", length) + family("B", 60)) for length in lengths] == [0, 1, 1, 2, 2, 2]
    assert num_public(public, family("A", 20)) == 1
    assert num_public(public, family("B", 48)) == 0
    assert num_public(public, []) == 0


def test_of_several_prefixes_the_longest_counts():
    public = PublicPrefixes(
        {"short": family("A", 16), "long": family("A", 64), "else": family("A", 16) + family("B", 64)}
    )
    assert num_public(public, family("A", 64)) == 4
    assert num_public(public, family("A", 16) + family("B", 50)) == 4
    assert num_public(public, family("A", 33)) == 2


def test_a_name_says_one_prompt_and_is_listed_in_order_until_it_is_deleted():
    public = PublicPrefixes()
    assert public.put("b", family("A", 16))
    assert public.put("a", family("B", 16))
    assert not public.put("b", family("A", 16))
    assert public.put("b", family("C", 16))
    assert [(name, list(token_ids)) for name, token_ids in public] == [("a", family("B", 16)), ("b", family("C", 16))]
    assert num_public(public, family("A", 16)) == 0
    assert (public.delete("b"), public.delete("b")) == (True, False)
    assert num_public(public, family("C", 16)) == 0


@pytest.mark.parametrize(
    ("name", "token_ids", "field"),
    [("", [1], "prefix.name"), ("x" * (MAX_NAME_CHARS + 1), [1], "prefix.name"), ("x", [], "prefix.token_ids")],
)
def test_a_prefix_needs_a_name_and_tokens(name: str, token_ids: list[int], field: str):
    public = PublicPrefixes({"kept": [1, 2]})
    with pytest.raises(BadPrefix) as refused:
        public.put(name, token_ids)
    assert refused.value.field == field
    assert len(public) == 1


def test_prefixes_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(public_prefixes, "MAX_PREFIXES", 1)
    public = PublicPrefixes({"one": [1]})
    with pytest.raises(BadPrefix, match="there are 1 public prefixes already"):
        public.put("two", [2])
    assert public.put("one", [3])


def test_what_was_recorded_comes_back_unless_its_name_was_used_meanwhile():
    public = PublicPrefixes()
    public.put("replaced", [2])
    public.delete("deleted")
    with pytest.raises(BadPrefix):
        public.put("refused", [])
    assert public.recall({"replaced": [1], "deleted": [1], "refused": [1], "kept": family("A", 16)})
    assert {name: len(tokens) for name, tokens in public} == {"replaced": 1, "refused": 1, "kept": 16}
    assert num_public(public, family("A", 20)) == 1


@pytest.mark.parametrize(("declared", "differs"), [({}, False), ({"one": [1]}, False), ({"two": [2]}, True)])
def test_recalling_tells_whether_the_record_must_be_written_again(declared: dict[str, list[int]], differs: bool):
    assert PublicPrefixes(declared).recall({"one": [1]}) is differs


def test_what_comes_back_is_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(public_prefixes, "MAX_PREFIXES", 2)
    public = PublicPrefixes({"mine": [1]})
    assert public.recall({"first": [2], "second": [3]})
    assert [name for name, _ in public] == ["first", "mine"]


def test_tenants_share_the_blocks_of_a_public_prefix_and_nothing_behind_it():
    known, rig = identities(system=family("A", 40)), Rig(41)
    prompt = family("A", 32) + family("B", 32) + [1]
    extras = {
        tenant: known.extras(tenant, array("I", prompt), salt="", adapter=None, block_size=16) for tenant in ("a", "b")
    }
    rig.declare(0, prompt, extras["a"])
    rig.alloc(0)
    assert rig.hit(prompt, extras["a"])[1] == 64
    assert rig.hit(prompt, extras["b"])[1] == 32
    assert rig.hit(prompt, NO_EXTRAS)[1] == 32


def test_a_prompt_with_a_salt_shares_nothing_public_either():
    known, rig = identities(system=family("A", 32)), Rig(41)
    prompt = family("A", 33)
    salted = known.extras("a", array("I", prompt), salt="s", adapter=None, block_size=16)
    plain = known.extras("a", array("I", prompt), salt="", adapter=None, block_size=16)
    assert (salted.namespace_block, plain.namespace_block) == (0, 2)
    rig.declare(0, prompt, plain)
    rig.alloc(0)
    assert rig.hit(prompt, salted)[1] == 0


def test_an_adapter_has_public_blocks_of_its_own():
    known, rig = identities(system=family("A", 32)), Rig(41)
    prompt, adapter = family("A", 33), Adapter(name="a", content_digest=b"1")
    extras = [
        known.extras(tenant, array("I", prompt), salt="", adapter=lora, block_size=16)
        for tenant, lora in (("a", adapter), ("b", adapter), ("b", None))
    ]
    rig.declare(0, prompt, extras[0])
    rig.alloc(0)
    assert [rig.hit(prompt, others)[1] for others in extras] == [32, 32, 0]


def test_what_nothing_sets_apart_is_plain():
    assert identities(system=[1]).extras("", array("I", [1]), salt="", adapter=None, block_size=16) is NO_EXTRAS
