"""Events of the prefix caches to messages. Decides nothing."""

from collections.abc import Iterable

from kvcache_service.core.event_log import CaughtUp, Restart, WatchedEvent
from kvcache_service.core.events import AllBlocksCleared, BlockRemoved, BlocksStored
from octavo.columns import pack
from octavo.kvcache.v1 import kvcache_pb2 as pb


def response(events: Iterable[WatchedEvent], kvcache_incarnation: int) -> pb.WatchResponse:
    """What a watcher is told at once."""
    return pb.WatchResponse(kvcache_incarnation=kvcache_incarnation, events=[_event(watched) for watched in events])


def _event(watched: WatchedEvent) -> pb.CacheEvent:
    message = pb.CacheEvent(event_num=watched.event_num, pool_id=watched.pool_id)
    match watched.event:
        case BlocksStored() as stored:
            message.stored.CopyFrom(_stored(stored))
        case BlockRemoved(block_hash=block_hash, group_index=group_index):
            message.removed.CopyFrom(pb.BlockRemoved(block_hash=block_hash, group_index=group_index))
        case AllBlocksCleared():
            message.cleared.SetInParent()
        case Restart(reason):
            message.restart.reason = reason.value
        case CaughtUp():
            message.caught_up.SetInParent()
    return message


def _stored(stored: BlocksStored) -> pb.BlocksStored:
    return pb.BlocksStored(
        block_hashes=b"".join(stored.block_hashes),
        parent_hash=stored.parent_hash or b"",
        token_ids=pack(stored.token_ids),
        block_ids=pack(stored.block_ids),
        group_index=stored.group_index,
    )
