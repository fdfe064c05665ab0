"""Turns the moves of a settled plan into the step that the worker gets: only what changed since the step before."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.plan import NewRequest, Step
from scheduler_service.core.request import Request


@dataclass(slots=True)
class Move:
    """A request that advances in this step."""

    request: Request
    num_tokens: int
    new_block_ids: Sequence[int]
    is_admission: bool


class StepDelta:
    """Remembers the rows of the last step sent, so that the same rows need not be named again."""

    def __init__(self) -> None:
        self._handles: list[int] = []

    def forget(self) -> None:
        """Name the rows in full next time: the worker may not have run the step before."""
        self._handles = []

    def build(self, moves: Sequence[Move], *, step: int, seq: int, acked_seq: int, released: Sequence[int]) -> Step:
        """The step of these moves, made before the requests advance."""
        handles = [move.request.handle for move in moves]
        num_tokens = [move.num_tokens for move in moves]
        grown = [row for row, move in enumerate(moves) if move.new_block_ids and not move.is_admission]
        num_new_blocks = [len(moves[row].new_block_ids) for row in grown]
        is_same = handles == self._handles
        self._handles = handles
        return Step(
            step=step,
            seq=seq,
            acked_seq=acked_seq,
            released_handles=tuple(released),
            new_requests=[_new_request(move.request) for move in moves if move.is_admission],
            handles=() if is_same else handles,
            num_scheduled_tokens=() if all(n == 1 for n in num_tokens) else num_tokens,
            new_block_rows=grown,
            num_new_blocks=() if all(n == 1 for n in num_new_blocks) else num_new_blocks,
            new_block_ids=[block_id for row in grown for block_id in moves[row].new_block_ids],
        )


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
