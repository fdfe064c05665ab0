"""What Redis would hold of a pool, and what a scheduler says of its grants, without Redis and wires."""

from kvcache_service.core import restore
from kvcache_service.core.pools import Pool
from kvcache_service.core.restore import PoolRecord, Position, RecordedBlock
from scheduler_service.core.grant_log import Opening
from tests.joint.site import SCHEDULER_INCARNATION


def recorded(pool: Pool) -> PoolRecord:
    """What Redis holds of a pool once everything is written."""
    blocks = pool.manager.pool
    copies = {key: blocks.committed_copies(key) for key in blocks.cache}
    return PoolRecord(
        pool_id=pool.key.pool_id,
        incarnation=pool.key.incarnation,
        scheduler_incarnation=SCHEDULER_INCARNATION,
        position=pool.position,
        num_blocks=blocks.num_blocks,
        fingerprint=pool.fingerprint,
        blocks=[
            RecordedBlock(key, blocks.parent(ids[0]), blocks.depth(ids[0]), blocks.namespace(ids[0]), ids)
            for key, ids in copies.items()
            if ids
        ],
    )


def opening_of(opening: Opening) -> restore.Opening:
    return restore.Opening(
        scheduler_incarnation=SCHEDULER_INCARNATION,
        number=opening.number,
        granted_after=Position(opening.granted_after.opening, opening.granted_after.step),
        granted=[
            restore.GrantedBlocks(Position(granted.position.opening, granted.position.step), granted.block_ids)
            for granted in opening.granted
        ],
    )
