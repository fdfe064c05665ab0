"""Turns the moves of a settled plan into the step that the worker gets: only what changed since the step before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.plan import NewRequest, Step
from scheduler_service.core.request import Request
from scheduler_service.core.slot_digest import MASK, MULTIPLIER


@dataclass(slots=True)
class Moves:
    """Who advances in a step: columns, one row per request. Those that are let in by it are the last rows."""

    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    new_block_ids: dict[int, Sequence[int]] = field(default_factory=dict)  # by row, ascending: of those that grew
    num_admissions: int = 0

    def add(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_tokens.append(num_tokens)

    @property
    def admitted(self) -> Sequence[Request]:
        return self.requests[len(self.requests) - self.num_admissions :]


class StepDelta:
    """Remembers the rows of the last step sent, so that the same rows need not be named again."""

    def __init__(self) -> None:
        self._handles: list[int] = []

    def forget(self) -> None:
        """Name the rows in full next time: the worker may not have run the step before."""
        self._handles = []

    def build(self, moves: Moves, *, step: int, seq: int, acked_seq: int, released: Sequence[int]) -> Step:
        """The step of these moves, made when the requests have their new blocks and before they advance."""
        handles = [request.handle for request in moves.requests]
        num_new_blocks = [len(block_ids) for block_ids in moves.new_block_ids.values()]
        is_same = handles == self._handles
        self._handles = handles
        return Step(
            step=step,
            seq=seq,
            acked_seq=acked_seq,
            released_handles=tuple(released),
            new_requests=[_new_request(request) for request in moves.admitted],
            handles=() if is_same else handles,
            num_scheduled_tokens=() if _are_ones(moves.num_tokens) else moves.num_tokens,
            new_block_rows=list(moves.new_block_ids),
            num_new_blocks=() if _are_ones(num_new_blocks) else num_new_blocks,
            new_block_ids=[block_id for block_ids in moves.new_block_ids.values() for block_id in block_ids],
            slots_digest=_slots_digest(moves.requests),
        )


def _slots_digest(requests: Sequence[Request]) -> int:
    """The chain over the rows: never 0, which on the wire means that there is none."""
    digest = 0
    for request in requests:
        row = request.slot_weight * (request.table_digest + request.num_computed_tokens)
        digest = (digest + row) * MULTIPLIER & MASK
    return digest or 1


def _are_ones(numbers: list[int]) -> bool:
    return numbers.count(1) == len(numbers)


def _new_request(request: Request) -> NewRequest:
    return NewRequest(
        handle=request.handle,
        request_id=request.request_id,
        epoch=request.epoch,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        block_ids=tuple(request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
    )
