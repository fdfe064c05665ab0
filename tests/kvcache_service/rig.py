"""A pool with a window of one: every operation is acknowledged, and its ids committed, before the next."""

from collections.abc import Sequence

from kvcache_service.core.block import hash_of
from kvcache_service.core.hash_extras import NO_EXTRAS, Extras
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.plan import Admission, AdmissionStatus, Grants, Plan
from kvcache_service.core.request import Identity

FAMILY_SIZE = 100_000


def family(name: str, num_tokens: int) -> list[int]:
    """A(48) is family("A", 48): distinct tokens, shared with no other family."""
    return [ord(name) * FAMILY_SIZE + position for position in range(num_tokens)]


class Rig:
    """`alloc` is plan and acknowledgement in one."""

    def __init__(self, num_blocks: int, **settings: int | bool) -> None:
        self.manager = KVCacheManager(num_blocks=num_blocks, **settings)  # type: ignore[arg-type]
        self.pool = self.manager.pool

    def declare(
        self, handle: int, token_ids: Sequence[int], extras: Extras = NO_EXTRAS, *, is_bypassing_cache: bool = False
    ) -> None:
        identity = Identity(extras=extras, is_bypassing_cache=is_bypassing_cache)
        self.manager.declare(handle, token_ids, identity=identity)

    def append(self, handle: int, token_ids: Sequence[int]) -> None:
        """Outputs became known."""
        self.manager.commit(handle, self.manager.request(handle).num_acked_tokens, token_ids)

    def alloc(self, handle: int, num_tokens: int | None = None, *, num_lookahead_tokens: int = 0) -> list[int]:
        """Advance a request; the newly taken block ids."""
        request = self.manager.request(handle)
        if request.block_table:
            growth = self.manager.grow(handle, num_tokens or 1, num_lookahead_tokens=num_lookahead_tokens)
            assert growth.new_block_ids is not None
            new_block_ids = growth.new_block_ids
        else:
            admission = self.admit(handle, num_tokens, num_lookahead_tokens=num_lookahead_tokens)
            assert admission.status is AdmissionStatus.ADMITTED
            new_block_ids = list(admission.block_ids[admission.num_cached_tokens // self.manager.block_size :])
        self.ack(handle)
        return new_block_ids

    def admit(self, handle: int, num_tokens: int | None = None, *, num_lookahead_tokens: int = 0) -> Admission:
        return self.manager.admit(handle, num_tokens, num_lookahead_tokens=num_lookahead_tokens)

    def ack(self, handle: int) -> None:
        self.manager.ack(self.manager.step)
        self.manager.step += 1
        self.manager.commit(handle, self.manager.request(handle).num_computed_tokens)

    def run(self, handle: int, token_ids: Sequence[int]) -> list[int]:
        """Declare, admit whole, acknowledge; the new block ids."""
        self.declare(handle, token_ids)
        return self.alloc(handle)

    def free(self, handle: int) -> None:
        self.manager.free(handle, self.manager.request(handle).epoch)

    def hit(self, token_ids: Sequence[int], extras: Extras = NO_EXTRAS) -> tuple[list[int], int]:
        """Hit blocks and tokens of a prompt."""
        block_ids = self.manager.lookup(token_ids, extras=extras)
        return block_ids, len(block_ids) * self.manager.block_size

    def plan(self, plan: Plan) -> Grants:
        return self.manager.plan_step(plan)

    @property
    def free_order(self) -> list[int]:
        return list(self.pool.free_queue)

    def is_hashed(self, block_id: int) -> bool:
        return self.pool.key(block_id) is not None

    def hash(self, block_id: int) -> bytes:
        key = self.pool.key(block_id)
        assert key is not None
        return hash_of(key)
