"""Two-phase publication: a block is reserved when the step that fills it is planned, committed when it is acknowledged.

Reserved blocks may be hit by admissions to the same pool in the same or a later plan, because its worker runs steps in
order. A reservation dies when the block is given out again; committing a dead one does nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvcache_service.core.block import group_of, hash_of
from kvcache_service.core.block_names import Run
from kvcache_service.core.block_pool import BlockPool
from kvcache_service.core.events import BlocksStored
from kvcache_service.core.request import Request


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of one request that one step fills: indexes [first, first + len(block_ids)) of its table."""

    request: Request
    first: int
    block_ids: list[int]


class Publication:
    """Names the blocks of one pool."""

    __slots__ = ("_block_size", "_pending", "_pool")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._pending: dict[int, list[Reservation]] = {}  # by step

    def reserve(self, request: Request, step: int, *, start: int) -> None:
        """Name the blocks that `step` fills from position `start` on, as far as their ids are known.

        Behind a block that is not named yet nothing is: that block was filled by an earlier step, so a commit names it
        and those behind it.
        """
        first = request.num_named_blocks
        if request.is_muted or first < start // self._block_size:
            return
        end = min(len(request.keys), request.num_computed_tokens // self._block_size)
        if first >= end:
            return
        reservation = Reservation(request, first, request.block_table[first:end])
        self._pool.reserve(self._run(request, first, reservation.block_ids), reservation)
        self._pending.setdefault(step, []).append(reservation)
        request.num_named_blocks = end

    def commit(self, request: Request) -> None:
        """Name the blocks of `request` that acknowledged steps have filled and whose ids are known."""
        first = request.num_named_blocks
        end = min(len(request.keys), request.num_acked_tokens // self._block_size)
        if request.is_muted or first >= end:
            return
        block_ids = request.block_table[first:end]
        request.num_named_blocks = end
        for part in _stretches([self._pool.key(block_id) is None for block_id in block_ids]):
            self._pool.commit(self._run(request, first + part.start, block_ids[part]))
            self._tell_stored(request, first + part.start, block_ids[part])

    def ack(self, step: int) -> None:
        """Commit the live reservations of this step and those before it, in the order in which they were made."""
        for acked in [planned for planned in self._pending if planned <= step]:
            for reservation in self._pending.pop(acked):
                self._commit_live(reservation)

    def fail(self, step: int) -> None:
        """Withdraw the live reservations of this step and those after it, the deepest block first."""
        for failed in sorted((planned for planned in self._pending if planned >= step), reverse=True):
            for reservation in reversed(self._pending.pop(failed)):
                self._withdraw_live(reservation)

    def withdraw(self, request: Request, step: int) -> None:
        """Withdraw what `request` reserved in `step`, because it will not be part of it."""
        reservations = self._pending.get(step, [])
        for reservation in [made for made in reservations if made.request is request]:
            self._withdraw_live(reservation)
            reservations.remove(reservation)

    def _withdraw_live(self, reservation: Reservation) -> None:
        for block_id in reversed(reservation.block_ids):
            if self._pool.is_under(reservation, block_id):
                self._pool.withdraw(block_id)

    def _commit_live(self, reservation: Reservation) -> None:
        for part in _stretches([self._pool.is_under(reservation, block_id) for block_id in reservation.block_ids]):
            block_ids = reservation.block_ids[part]
            self._pool.confirm(block_ids)
            self._tell_stored(reservation.request, reservation.first + part.start, block_ids)

    def _run(self, request: Request, first: int, block_ids: list[int]) -> Run:
        """Blocks of a request from index `first` on; the one before them is named."""
        end = first + len(block_ids)
        return Run(
            block_ids=block_ids,
            keys=request.keys[first:end],
            first_token_ids=request.token_ids[first * self._block_size : end * self._block_size : self._block_size],
            parent=self._pool.key(request.block_table[first - 1]) if first else None,
            depth=first,
            extras=request.identity.extras,
        )

    def _tell_stored(self, request: Request, first: int, block_ids: list[int]) -> None:
        end = first + len(block_ids)
        event = BlocksStored(
            block_hashes=tuple(hash_of(key) for key in request.keys[first:end]),
            parent_hash=hash_of(request.keys[first - 1]) if first else None,
            token_ids=request.token_ids[first * self._block_size : end * self._block_size],
            block_ids=tuple(block_ids),
            group_index=group_of(request.keys[first]),
        )
        self._pool.tell(event)


def _stretches(flags: Sequence[bool]) -> list[slice]:
    """The parts of a sequence in which all are true, as large as they can be."""
    if all(flags):
        return [slice(0, len(flags))]
    parts, start = [], 0
    for is_true, group in groupby(flags):
        end = start + len(list(group))
        if is_true:
            parts.append(slice(start, end))
        start = end
    return parts
