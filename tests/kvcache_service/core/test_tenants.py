"""Tenants and their namespaces."""

import pytest

from kvcache_service.core import tenants
from kvcache_service.core.block_hash import namespace_of
from kvcache_service.core.tenants import Tenants


def test_a_tenant_has_one_namespace_under_one_key_and_none_without_a_name():
    known = Tenants(b"key")
    assert known.namespace("acme") == known.namespace("acme") == namespace_of("acme", b"key")
    assert known.namespace("acme") != Tenants(b"other").namespace("acme")
    assert known.namespace("") is None


def test_a_namespace_is_known_by_the_name_of_its_tenant_once_that_was_heard():
    known, heard_nothing = Tenants(b"key"), Tenants(b"key")
    namespace = known.namespace("acme")
    assert namespace is not None
    assert (known.name(namespace), known.name(None)) == ("acme", "")
    assert heard_nothing.name(namespace) == f"namespace:{namespace.hex()}"


def test_names_are_remembered_within_a_bound_those_asked_for_last_longest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenants, "MAX_TENANTS", 2)
    known = Tenants(b"key")
    spaces = {name: known.namespace(name) for name in ("a", "b", "a", "c")}
    assert [known.name(spaces[name]) for name in ("a", "c")] == ["a", "c"]
    assert known.name(spaces["b"]).startswith("namespace:")
    assert known.namespace("b") == spaces["b"]
