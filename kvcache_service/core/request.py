"""What a pool knows of one request: token ids, the keys of its full blocks and, while it runs, its block table."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from kvcache_service.core.block_hash import HashChain
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a request belongs to and what its blocks hash under."""

    request_id: str = ""
    extras: Extras = NO_EXTRAS
    is_bypassing_cache: bool = False  # reads nothing, still publishes
    trace_context: bytes = b""


ANONYMOUS = Identity()


class Request:
    """Ids and keys live from declare to forget; the table from an admission to a release."""

    __slots__ = ("_chain", "block_table", "epoch", "handle", "identity", "is_muted", "keys", "num_acked_tokens",
                 "num_computed_tokens", "num_named_blocks", "num_refusals", "num_slots", "token_ids")  # fmt: skip

    def __init__(
        self, handle: int, token_ids: Iterable[int], *, epoch: int, identity: Identity, chain: HashChain | None
    ) -> None:
        """Without a chain (caching off) no block ever gets a key."""
        self.handle = handle
        self.epoch = epoch
        self.identity = identity
        self.token_ids = array("I", token_ids)
        self.keys: list[bytes] = []  # of full blocks whose ids are all known; computed once, kept over preemptions
        self.block_table: list[int] = []
        self.num_slots = 0  # tokens that the table has room for
        self.num_computed_tokens = 0
        self.num_acked_tokens = 0
        self.num_named_blocks = 0  # leading blocks of the table that are reserved or committed
        self.is_muted = False  # its namespace was erased while it ran: nothing more of this table is published
        self.num_refusals = 0  # since the last admission
        self._chain = chain
        self.add_tokens(())

    def add_tokens(self, token_ids: Iterable[int]) -> None:
        """Output ids became known."""
        self.token_ids.extend(token_ids)
        if self._chain is not None:
            self._chain.extend(self.keys, self.token_ids)

    def drop_table(self) -> None:
        """Back to waiting: nothing computed, ids and keys kept, and a late release finds another epoch."""
        self.epoch += 1
        self.block_table = []
        self.is_muted = False
        self.num_slots = self.num_computed_tokens = self.num_acked_tokens = self.num_named_blocks = 0
