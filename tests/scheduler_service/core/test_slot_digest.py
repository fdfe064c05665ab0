"""What the scheduler says of a step's rows: the vectors of docs/protocol.md, and the same as the worker finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.core import slot_digest as of_worker
from scheduler_service.core import slot_digest
from scheduler_service.core.request import Request
from scheduler_service.core.step_delta import Moves, StepDelta
from tests.scheduler_service.core.rig import Rig, a_request, family

Row = tuple[int, int, int, list[int]]  # handle, epoch, num_computed_tokens, block ids


def request(row: Row) -> Request:
    handle, epoch, num_computed_tokens, block_ids = row
    made = a_request(f"r{handle}", [1])
    made.handle, made.epoch, made.num_computed_tokens = handle, epoch, num_computed_tokens
    made.take_table(block_ids[:1])
    made.extend_table(block_ids[1:])
    return made


def digest(rows: list[Row]) -> int:
    moves = Moves([request(row) for row in rows], [1] * len(rows))
    return StepDelta().build(moves, step=1, seq=1, acked_seq=0, released=()).slots_digest


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, 0, 0, [1])], 0xB80060C6),
        ([(1, 0, 17, [1, 2]), (2, 0, 0, [3])], 0xE5FB6930),
        ([(4_000_000_000, 3, 70_000, [7, 5, 6]), (9, 1, 1, list(range(1, 41)))], 0x85E4BFCE),
    ],
)
def test_vectors(rows: list[Row], expected: int) -> None:
    assert digest(rows) == expected


@given(st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.lists(st.integers(1, 2**24), max_size=60))
def test_both_sides_count_alike(handle: int, epoch: int, block_ids: list[int]) -> None:
    assert slot_digest.weight(handle, epoch) == of_worker.weight(handle, epoch)
    assert slot_digest.of_table(block_ids) == of_worker.of_table(np.array(block_ids, dtype=np.uint32))


def test_a_step_says_how_its_rows_stand_before_they_move_with_the_blocks_it_brings() -> None:
    rig = Rig(num_blocks=20)
    rig.submit("a", family("A", 30))
    rig.submit("b", family("B", 10))
    for _ in range(5):
        before = {r.handle: r.num_computed_tokens for r in rig.core.running}
        settlement = rig.plan()
        assert settlement is not None
        assert settlement.step is not None
        assert settlement.sent is not None
        rows = [(r.handle, r.epoch, before.get(r.handle, 0), list(r.block_ids)) for r in settlement.sent.requests]
        assert settlement.step.slots_digest == digest(rows)
        rig.result()


def test_a_request_that_comes_back_has_another_weight() -> None:
    assert digest([(1, 0, 5, [1])]) != digest([(1, 1, 5, [1])])
