"""From who a request says it is to what its blocks hash under."""

from array import array

from kvcache_service.core.hash_extras import NO_EXTRAS, Adapter, Extras
from kvcache_service.core.public_prefixes import PublicPrefixes
from kvcache_service.core.tenants import Tenants


class Identities:
    """Knows the tenants and which prefixes are the same for all of them."""

    __slots__ = ("public", "tenants")

    def __init__(self, tenants: Tenants, public: PublicPrefixes) -> None:
        self.tenants = tenants
        self.public = public

    def extras(
        self, tenant: str, token_ids: "array[int]", *, salt: str, adapter: Adapter | None, block_size: int
    ) -> Extras:
        """What a prompt hashes under. With a salt it shares nothing, so no prefix is public for it."""
        namespace = self.tenants.namespace(tenant)
        if namespace is None and not salt and adapter is None:
            return NO_EXTRAS
        is_private = namespace is None or salt != ""
        namespace_block = 0 if is_private else self.public.num_public_blocks(token_ids, block_size)
        return Extras(namespace=namespace, namespace_block=namespace_block, salt=salt, adapter=adapter)
