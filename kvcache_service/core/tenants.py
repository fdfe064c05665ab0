"""Tenants by name: which namespace keeps a tenant's prefixes apart, and whose a namespace is."""

from kvcache_service.core.block_hash import namespace_of

MAX_TENANTS = 16384  # names remembered; the one that was asked for longest ago is forgotten first


class Tenants:
    """Derives the namespace of a tenant once, and knows its name again."""

    __slots__ = ("_key", "_names", "_namespaces")

    def __init__(self, namespace_key: bytes) -> None:
        self._key = namespace_key
        self._namespaces: dict[str, bytes] = {}  # by name; the one asked for last is the last
        self._names: dict[bytes, str] = {}

    def namespace(self, tenant: str) -> bytes | None:
        """The namespace of an authenticated tenant; None, outside all namespaces, when nobody was authenticated."""
        if not tenant:
            return None
        namespace = self._namespaces.pop(tenant, None) or self._derive(tenant)
        self._namespaces[tenant] = namespace
        return namespace

    def name(self, namespace: bytes | None) -> str:
        """Whose a namespace is; `namespace:` and its hex when that is not known (any more)."""
        if namespace is None:
            return ""
        return self._names.get(namespace) or f"namespace:{namespace.hex()}"

    def _derive(self, tenant: str) -> bytes:
        namespace = namespace_of(tenant, self._key)
        assert namespace is not None, "a tenant that has a name has a namespace"
        if len(self._names) == MAX_TENANTS:
            longest_ago = next(iter(self._namespaces))
            del self._names[self._namespaces.pop(longest_ago)]
        self._names[namespace] = tenant
        return namespace
