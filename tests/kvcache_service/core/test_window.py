"""Prefix hits of layers with a window, and of groups of layers together; scenarios by number."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_service.core.block import NULL_BLOCK_ID
from kvcache_service.core.window import Group, common_num_hit_blocks, hit_blocks, num_hit_blocks, num_window_blocks

B = 16
PATTERNS = st.lists(st.booleans(), max_size=12)


def group(pattern: Sequence[bool], window_blocks: int | None = None) -> Group:
    """Holds the blocks where the pattern is true; the block of index i is i + 1."""
    return Group(lambda index: index + 1 if index < len(pattern) and pattern[index] else None, window_blocks)


def of_table(table: Sequence[int | None], window_blocks: int | None = None) -> Group:
    """Holds the full blocks of a table."""
    return Group(lambda index: table[index] if index < len(table) else None, window_blocks)


@pytest.mark.parametrize(
    ("pattern", "hit"),
    [
        ("TF", 1),
        ("TTF", 2),
        ("TTT", 3),
        ("TTFTFFTTFTTT", 12),
        ("TTFTFFTTFFF", 8),
        ("TTFTFFTTFFFT", 8),
        ("FFFF", 0),
    ],
)
def test_scenario_40_a_window_needs_only_the_blocks_that_it_reaches_into(pattern: str, hit: int):
    windowed = group([held == "T" for held in pattern], num_window_blocks(4, block_size=2))
    assert num_hit_blocks(windowed, len(pattern)) == hit
    nulls = max(0, hit - 2)
    assert hit_blocks(windowed, hit) == [NULL_BLOCK_ID] * nulls + list(range(nulls + 1, hit + 1))


@pytest.mark.parametrize(("window", "blocks"), [(1, 0), (2, 1), (4, 2), (5, 2), (6, 3)])
def test_the_token_to_be_computed_is_a_part_of_its_window(window: int, blocks: int):
    assert num_window_blocks(window, block_size=2) == blocks


def test_scenario_41_all_groups_hit_alike_and_windows_hold_their_last_blocks_only():
    tables = [of_table([1, 2, 3]), of_table([5, 6, 7], 2), of_table([9, 10, 11], 2)]  # r0 = A(48)+7
    limit = (48 + 5 - 1) // B  # r1 = A(48)+5
    num_blocks = common_num_hit_blocks(tables, limit)
    assert num_blocks * B == 48
    assert [hit_blocks(table, num_blocks) for table in tables] == [[1, 2, 3], [0, 6, 7], [0, 10, 11]]


def test_scenario_42_a_hit_ends_where_every_group_can_resume():
    full, states = of_table([1, 2, None, None]), of_table([5, None, None, 8], 1)
    limit = (80 - 1) // B
    assert num_hit_blocks(full, limit) == 2
    assert common_num_hit_blocks([full, states], limit) * B == 16
    loaded = of_table([5, 6, None, 8], 1)  # 16 tokens came from elsewhere, behind the 16 that are here
    assert common_num_hit_blocks([full, loaded], limit) * B == 32


@given(patterns=st.lists(st.tuples(PATTERNS, st.none() | st.integers(1, 4)), min_size=1, max_size=3))
def test_a_hit_is_the_longest_that_every_group_can_resume_behind(patterns: list[tuple[list[bool], int | None]]):
    def can_resume(num_blocks: int) -> bool:
        first = [0 if window is None else max(0, num_blocks - window) for _, window in patterns]
        reads = [pattern[start:num_blocks] for start, (pattern, _) in zip(first, patterns, strict=True)]
        return all(all(held) for held in reads)

    limit = min(len(pattern) for pattern, _ in patterns)
    groups = [group(pattern, window) for pattern, window in patterns]
    expected = max(num_blocks for num_blocks in range(limit + 1) if can_resume(num_blocks))
    assert common_num_hit_blocks(groups, limit) == expected
