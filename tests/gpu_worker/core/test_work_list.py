"""Work items cover every pair of a token and a position it sees once; reductions fold the pieces of what was cut."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.core import work_list
from gpu_worker.core.work_list import SEGMENT, Heads, WorkList

Row = tuple[int, int]  # length, tokens that are new

row = st.tuples(st.integers(0, 2500), st.integers(1, 150)).map(lambda pair: (pair[0] + pair[1], pair[1]))
decode_row = st.integers(1, 2500).map(lambda length: (length, 1))
rows_of_a_step = st.lists(st.one_of(row, decode_row), min_size=1, max_size=6)
some_heads = st.builds(
    lambda kv_heads, group, workers: Heads(num_heads=kv_heads * group, num_kv_heads=kv_heads, num_workers=workers),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([1, 2, 3, 4, 8, 128]),
    st.sampled_from([1, 2, 5, 16]),
)
some_window = st.sampled_from([0, 1, 2, 7, 512, 700, 5000])


def planned(rows: list[Row], heads: Heads, window: int = 0) -> WorkList:
    starts = np.cumsum([0, *(num_new for _, num_new in rows)], dtype=np.int32)
    lengths = np.array([length for length, _ in rows], dtype=np.int32)
    return work_list.plan(starts, lengths, heads=heads, window=window)


def seen(plan: WorkList) -> dict[int, list[range]]:
    """By token, what the items let it see."""
    ranges = defaultdict(list)
    for _, first_token, num_tokens, first_position, begin, end, _, _ in plan.items.tolist():
        for i in range(num_tokens):
            oldest = first_position + i - plan.window + 1 if plan.window else 0
            ranges[first_token + i].append(range(max(begin, oldest), min(end, first_position + i + 1)))
    return ranges


@settings(max_examples=60, deadline=None)
@given(rows_of_a_step, some_heads, some_window)
def test_every_token_meets_every_position_it_sees_once(rows: list[Row], heads: Heads, window: int) -> None:
    ranges = seen(planned(rows, heads, window))
    token = 0
    for length, num_new in rows:
        for position in range(length - num_new, length):
            met = sorted((r for r in ranges.pop(token) if r), key=lambda r: r.start)
            assert met[0].start == (max(0, position - window + 1) if window else 0)
            assert met[-1].stop == position + 1
            assert all(one.stop == following.start for one, following in itertools.pairwise(met))
            token += 1
    assert not ranges


@settings(max_examples=60, deadline=None)
@given(rows_of_a_step, some_heads, some_window)
def test_an_item_has_tokens_of_one_row_at_their_positions(rows: list[Row], heads: Heads, window: int) -> None:
    starts = np.cumsum([0, *(num_new for _, num_new in rows)])
    for index, first_token, num_tokens, first_position, *_, zero in planned(rows, heads, window).items.tolist():
        length, num_new = rows[index]
        assert starts[index] <= first_token < first_token + num_tokens <= starts[index + 1]
        assert first_position == length - num_new + first_token - starts[index]
        assert num_tokens == 1 or num_tokens * heads.num_heads // heads.num_kv_heads <= work_list.MAX_ITEM_ROWS
        assert zero == 0


@settings(max_examples=60, deadline=None)
@given(rows_of_a_step, some_heads, some_window)
def test_pieces_are_segments_and_every_token_of_them_is_folded_in_order(
    rows: list[Row], heads: Heads, window: int
) -> None:
    plan = planned(rows, heads, window)
    begins: dict[int, int] = {}  # of a slot
    tokens: dict[int, int] = {}
    whole: list[int] = []
    for _, first_token, num_tokens, _, begin, end, first_slot, _ in plan.items.tolist():
        if first_slot < 0:
            whole += range(first_token, first_token + num_tokens)
            continue
        assert begin // SEGMENT == (end - 1) // SEGMENT
        for i in range(num_tokens):
            assert first_slot + i not in begins
            begins[first_slot + i], tokens[first_slot + i] = begin, first_token + i
    for token, first, count, distance in plan.reductions.tolist():
        slots = range(first, first + count * distance, distance)
        assert {tokens.pop(slot) for slot in slots} == {token}
        assert [begins[slot] for slot in slots] == sorted({begins[slot] for slot in slots})
    assert not tokens
    assert sorted(begins) == list(range(plan.num_partials))
    assert sorted([*whole, *plan.reductions[:, 0].tolist()]) == list(range(sum(num_new for _, num_new in rows)))


@settings(max_examples=60, deadline=None)
@given(rows_of_a_step, some_heads, some_window)
def test_the_longest_item_comes_first(rows: list[Row], heads: Heads, window: int) -> None:
    items = planned(rows, heads, window).items
    cost = work_list._cost(items, heads)
    assert (np.diff(cost) <= 0).all()


TWO_THREADS = Heads(num_heads=9, num_kv_heads=3, num_workers=2)


def test_one_long_row_is_cut_for_two_workers_but_not_for_one() -> None:
    plan = planned([(1300, 1)], TWO_THREADS)
    assert plan.items[:, 4:7].tolist() == [[0, 512, 0], [512, 1024, 1], [1024, 1300, 2]]
    assert plan.reductions.tolist() == [[0, 0, 3, 1]]
    alone = planned([(1300, 1)], Heads(num_heads=9, num_kv_heads=3, num_workers=1))
    assert alone.items.tolist() == [[0, 0, 1, 1299, 0, 1300, -1, 0]]


def test_many_rows_are_not_cut() -> None:
    plan = planned([(1300, 1)] * 8, TWO_THREADS)
    assert len(plan.items) == 8
    assert plan.num_partials == len(plan.reductions) == 0


@pytest.mark.parametrize("num_workers", [2, 16, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (9, 3), (32, 8), (64, 8), (128, 1)])
def test_however_long_a_row_is_partials_take_no_more_memory_than_is_meant_for_them(
    num_heads: int, num_kv_heads: int, num_workers: int
) -> None:
    heads = Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, num_workers=num_workers)
    for length, num_new in itertools.product((8192, 131_072, 1_000_000), (1, 12, 160, 8192)):
        plan = planned([(length, num_new)], heads)
        assert plan.num_partials * num_heads <= work_list.MAX_PARTIAL_ROWS
        assert num_new > 1 or plan.num_partials == -(-length // SEGMENT) or num_kv_heads >= 4 * num_workers


def test_a_row_much_longer_than_the_others_is_cut_alone() -> None:
    plan = planned([(100, 1), (4096, 1), (100, 1), (100, 1)], TWO_THREADS)
    assert set(plan.items[plan.items[:, 6] >= 0, 0]) == {1}
    assert plan.reductions.tolist() == [[1, 0, 8, 1]]


def test_a_window_skips_what_nobody_sees() -> None:
    plan = planned([(1000, 1), (300, 100)], Heads(num_heads=2, num_kv_heads=2, num_workers=1), window=50)
    begins = {(item[0], item[3]): item[4] for item in plan.items.tolist()}
    assert begins[0, 999] == 950
    assert begins[1, 200] == 151


@pytest.mark.parametrize("num_tokens", [1, 7, 64, 500])
def test_a_chunk_gives_every_worker_something_to_do(num_tokens: int) -> None:
    heads = Heads(num_heads=16, num_kv_heads=8, num_workers=4)
    plan = planned([(num_tokens, num_tokens)], heads)
    assert len(plan.items) * heads.num_kv_heads >= min(2 * heads.num_workers, num_tokens * heads.num_kv_heads)
