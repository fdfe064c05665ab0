"""The digest by which worker and scheduler compare a step's rows: the vectors of docs/protocol.md, and what it sees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.core import slot_digest
from tests.gpu_worker.steps import packed

Row = tuple[int, int, int, list[int]]  # handle, epoch, num_computed_tokens, block ids

VECTORS: list[tuple[list[Row], int]] = [
    ([(1, 0, 0, [1])], 0xB80060C6),
    ([(1, 0, 17, [1, 2]), (2, 0, 0, [3])], 0xE5FB6930),
    ([(4_000_000_000, 3, 70_000, [7, 5, 6]), (9, 1, 1, list(range(1, 41)))], 0x85E4BFCE),
]
ROWS = st.lists(
    st.tuples(
        st.integers(1, 2**32 - 1),
        st.integers(0, 1000),
        st.integers(0, 10**6),
        st.lists(st.integers(1, 2**24), max_size=40),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[0],
)


def digest(rows: list[Row]) -> int:
    weights = packed([slot_digest.weight(handle, epoch) for handle, epoch, _, _ in rows])
    tables = packed([slot_digest.of_table(packed(block_ids)) for *_, block_ids in rows])
    return slot_digest.of_rows(weights, tables, np.array([row[2] for row in rows]))


def chain(values: list[int]) -> int:
    """As the documentation says it."""
    total = 0
    for value in values:
        total = (total + value) * 0x01000193 % 2**32
    return total


@pytest.mark.parametrize(("rows", "expected"), VECTORS)
def test_vectors(rows: list[Row], expected: int) -> None:
    assert digest(rows) == expected


@given(ROWS)
def test_it_is_what_the_documentation_says(rows: list[Row]) -> None:
    values = [
        slot_digest.weight(handle, epoch) * (chain([block_id + 1 for block_id in block_ids]) + computed)
        for handle, epoch, computed, block_ids in rows
    ]
    assert digest(rows) == (chain(values) or 1)


@given(st.lists(st.integers(1, 2**24), max_size=60), st.integers(0, 60))
def test_a_table_may_come_in_pieces(block_ids: list[int], cut: int) -> None:
    first = slot_digest.of_table(packed(block_ids[:cut]))
    assert slot_digest.of_table(packed(block_ids[cut:]), first) == slot_digest.of_table(packed(block_ids))


@given(ROWS, st.data())
def test_one_wrong_row_is_seen(rows: list[Row], data: st.DataObject) -> None:
    """A block more, one less, a position off by a little: whatever one lost message does to one row."""
    index = data.draw(st.integers(0, len(rows) - 1))
    handle, epoch, computed, block_ids = rows[index]
    wrong: Row = data.draw(
        st.sampled_from([
            (handle, epoch, computed + 1, block_ids),
            (handle, epoch, computed, [*block_ids, 5]),
            (handle, epoch, computed, [*block_ids[:-1], 2**24 + 1]),
        ])
    )  # fmt: skip
    assert digest([*rows[:index], wrong, *rows[index + 1 :]]) != digest(rows)


def test_blocks_given_to_each_others_rows_are_seen() -> None:
    right = [(1, 0, 16, [1, 3]), (2, 0, 16, [2, 4])]
    crossed = [(1, 0, 16, [1, 4]), (2, 0, 16, [2, 3])]
    swapped = [right[1], right[0]]
    assert len({digest(right), digest(crossed), digest(swapped)}) == 3
