"""Every token of a step lands at its own slot, and rows sample exactly when they reach their last known token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.input_batch import DecodeGroup, InputBatch
from tests.gpu_worker.steps import new_request, step


def planned(rows: list[tuple[int, int, int]], *, block_size: int = 4) -> tuple[InputBatch, BatchState]:
    """A batch of rows (known tokens, computed tokens, tokens to advance); request i has tokens 100 * i + position."""
    state = BatchState(block_size=block_size, num_blocks=10_000, max_model_len=4096, vocab_size=100_000)
    new, next_block = [], 1
    for handle, (known, computed, _) in enumerate(rows):
        num_blocks = -(-known // block_size)
        blocks = list(range(next_block, next_block + num_blocks))[::-1]
        next_block += num_blocks
        tokens = [100 * handle + position for position in range(known)]
        new.append(new_request(handle, tokens, blocks, num_computed_tokens=computed))
    counts = {handle: advance for handle, (_, _, advance) in enumerate(rows)}
    return input_batch.plan(state, state.apply(step(1, counts, new_requests=tuple(new)))), state


def test_a_mixed_step_laid_out() -> None:
    batch, state = planned([(6, 0, 6), (5, 4, 1), (9, 8, 1), (7, 2, 3)])
    assert batch.token_ids.tolist() == [208, 104, 0, 1, 2, 3, 4, 5, 302, 303, 304]
    assert batch.positions.tolist() == [8, 4, 0, 1, 2, 3, 4, 5, 2, 3, 4]
    assert batch.query_starts.tolist() == [0, 1, 2, 8, 11]
    assert batch.sequence_lengths.tolist() == [9, 5, 6, 5]
    assert batch.num_decode_rows == 2
    assert batch.decode_groups == (DecodeGroup(first_row=0, num_rows=2, num_blocks=3),)
    assert batch.block_tables.tolist() == [[7, 6, 5], [4, 3, 0], [2, 1, 0], [9, 8, 0]]
    assert batch.slot_mapping.tolist() == [20, 12, 8, 9, 10, 11, 4, 5, 38, 39, 32]
    assert batch.sampled_token_indices.tolist() == [7, 1, 0]  # rows 0, 1, 2 in the order of the step; row 3 is a chunk
    assert [state.request(slot).handle for slot in batch.sampled_slots.tolist()] == [0, 1, 2]


def test_a_long_row_does_not_make_short_ones_pay() -> None:
    batch, _ = planned([(20, 19, 1), (4000, 3999, 1), (24, 23, 1), (1900, 1899, 1)])
    assert batch.decode_groups == (
        DecodeGroup(first_row=0, num_rows=1, num_blocks=1000),
        DecodeGroup(first_row=1, num_rows=1, num_blocks=475),
        DecodeGroup(first_row=2, num_rows=2, num_blocks=6),
    )


def test_a_group_never_spans_more_than_the_limit() -> None:
    batch, _ = planned([(4000, 3999, 1)] * 10, block_size=16)
    sizes = [group.num_rows * group.num_blocks * 16 for group in batch.decode_groups]
    assert sum(group.num_rows for group in batch.decode_groups) == 10
    assert max(sizes) <= input_batch.MAX_GROUP_TOKENS


row = st.integers(1, 60).flatmap(
    lambda known: st.integers(0, known - 1).flatmap(
        lambda computed: st.tuples(st.just(known), st.just(computed), st.integers(1, known - computed))
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(row, min_size=1, max_size=12))
def test_every_token_is_there_once_and_every_visible_position_has_its_block(rows: list[tuple[int, int, int]]) -> None:
    batch, state = planned(rows)
    expected = [100 * r + p for r, (_, done, advance) in enumerate(rows) for p in range(done, done + advance)]
    assert sorted(batch.token_ids.tolist()) == expected
    assert len(set(batch.slot_mapping.tolist())) == batch.num_tokens
    for index in range(batch.num_rows):
        first, end = batch.query_starts[index : index + 2]
        request, slot = batch.token_ids[first] // 100, state._slot_of[int(batch.token_ids[first]) // 100]
        length = batch.sequence_lengths[index]
        assert (batch.token_ids[first:end] == 100 * request + batch.positions[first:end]).all()
        assert batch.positions[end - 1] == length - 1
        num_blocks = -(-length // 4)
        assert (batch.block_tables[index, :num_blocks] == state.block_table[slot, :num_blocks]).all()
        assert not batch.block_tables[index, num_blocks:].any()
    covered = [r for g in batch.decode_groups for r in range(g.first_row, g.first_row + g.num_rows)]
    assert covered == list(range(batch.num_decode_rows))
    at_end = [r for r, (known, computed, advance) in enumerate(rows) if known == computed + advance]
    assert [state.request(slot).handle for slot in batch.sampled_slots.tolist()] == at_end
    assert batch.token_ids[batch.sampled_token_indices].tolist() == [100 * r + rows[r][0] - 1 for r in at_end]


def test_a_warm_up_batch_stays_in_the_null_block() -> None:
    for num_tokens in (1, 40):
        batch = input_batch.of_null_block(num_tokens, 16)
        assert batch.slot_mapping.max() < 16
        assert not batch.block_tables.any()
