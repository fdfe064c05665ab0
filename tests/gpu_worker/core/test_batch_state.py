"""The mirror takes deltas over exactly, and refuses every step that contradicts it before any memory is touched."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.core import slot_digest
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.step import BadStep, Sampling, SlotsDiffer
from tests.gpu_worker.steps import new_request, packed, step


def make_state() -> BatchState:
    return BatchState(block_size=4, num_blocks=16, max_model_len=32, vocab_size=100)


def with_request(**changes: Any) -> BatchState:
    """A mirror in which request 5 has computed its prompt of 6 tokens and sampled one."""
    state = make_state()
    rows = state.apply(step(1, {5: 6}, new_requests=(new_request(5, [1, 2, 3, 4, 5, 6], [7, 3], **changes),)))
    state.advance(rows, rows.slots, np.array([42]))
    return state


def test_sampled_tokens_are_fed_back() -> None:
    state = with_request()
    slot = state._slot_of[5]
    assert state.token_ids[slot, :7].tolist() == [1, 2, 3, 4, 5, 6, 42]
    assert (state.num_tokens[slot], state.num_computed_tokens[slot]) == (7, 6)


def test_a_step_without_handles_repeats_the_rows_before() -> None:
    state = with_request()
    rows = state.apply(step(2))
    assert rows.slots.tolist() == [state._slot_of[5]]
    assert rows.num_scheduled_tokens.tolist() == [1]


def test_new_blocks_are_appended_to_the_rows_named() -> None:
    state = with_request()
    slot = state._slot_of[5]
    state.apply(step(2, new_block_rows=packed([0]), num_new_blocks=packed([2]), new_block_ids=packed([9, 11])))
    assert state.block_table[slot, : state.num_blocks[slot]].tolist() == [7, 3, 9, 11]


def test_a_higher_epoch_replaces_the_request() -> None:
    state = with_request()
    state.apply(step(2, {5: 8}, new_requests=(new_request(5, list(range(8)), [1, 2], epoch=1),)))
    slot = state._slot_of[5]
    assert len(state) == 1
    assert (state.num_tokens[slot], state.block_table[slot, :2].tolist()) == (8, [1, 2])


def test_a_released_request_is_unknown_from_then_on() -> None:
    state = with_request()
    state.apply(step(2, {6: 1}, released_handles=packed([5]), new_requests=(new_request(6, [1], [2]),)))
    with pytest.raises(BadStep, match="step 3 names request 5, which is not here"):
        state.apply(step(3, {5: 1}))


def test_releasing_an_unknown_request_is_harmless() -> None:
    state = with_request()
    state.apply(step(2, {5: 1}, released_handles=packed([77])))


def test_a_dropped_step_takes_its_requests_along() -> None:
    state = with_request()
    bad = step(2, {5: 1, 8: 1}, new_requests=(new_request(8, [1, 2], [4]),), released_handles=packed([]))
    state.drop(bad)
    assert len(state) == 0
    assert len(state.apply(step(3, {5: 7}, new_requests=(new_request(5, [0] * 7, [1, 2]),))).slots) == 1


def test_reset_forgets_everything() -> None:
    state = with_request()
    state.reset()
    assert len(state) == 0
    with pytest.raises(BadStep, match="has no rows"):
        state.apply(step(2))


def digest_of(handle: int, *, epoch: int = 0, num_computed_tokens: int, block_ids: list[int]) -> int:
    """What a scheduler sends that believes this of a step's only row."""
    weight, table = slot_digest.weight(handle, epoch), slot_digest.of_table(packed(block_ids))
    return slot_digest.of_rows(packed([weight]), packed([table]), np.array([num_computed_tokens]))


def test_a_step_of_which_both_sides_believe_the_same_is_taken() -> None:
    state = with_request()
    believed = digest_of(5, num_computed_tokens=6, block_ids=[7, 3, 9])
    state.apply(step(2, new_block_rows=packed([0]), new_block_ids=packed([9]), slots_digest=believed))


DIFFERENCES: dict[str, dict[str, Any]] = {
    "a block that never came": {"block_ids": [7, 3, 9]},
    "another block": {"block_ids": [7, 2]},
    "a step that never ran here": {"num_computed_tokens": 7},
    "another life of the request": {"epoch": 1},
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_step_that_would_write_into_wrong_blocks_is_not_taken(difference: str) -> None:
    believed: dict[str, Any] = {"num_computed_tokens": 6, "block_ids": [7, 3]}
    state = with_request()
    with pytest.raises(SlotsDiffer, match="is here"):
        state.apply(step(2, slots_digest=digest_of(5, **(believed | DIFFERENCES[difference]))))


def test_a_difference_although_everything_came_whole_is_an_error_and_no_loss() -> None:
    """Sending it whole again would not help: somebody has to hear of it."""
    new = new_request(5, [1, 2, 3], [7])
    with pytest.raises(BadStep, match="is here") as caught:
        make_state().apply(step(1, {5: 3}, new_requests=(new,), slots_digest=1))
    assert not isinstance(caught.value, SlotsDiffer)


def test_what_is_missing_or_older_here_must_come_whole() -> None:
    for changes in ({"handles": packed([9])}, {"new_requests": (new_request(5, [1], [1]),)}):
        with pytest.raises(SlotsDiffer):
            with_request().apply(step(2, **changes))


BAD_STEPS: dict[str, dict[str, Any]] = {
    "names request 9, which is not here": {"rows": {9: 1}},
    "names a request twice": {"handles": packed([5, 5]), "num_scheduled_tokens": packed([1, 1])},
    "has 1 rows and 2 token counts": {"rows": {5: 1}, "num_scheduled_tokens": packed([1, 1])},
    "moves 2 from 6; it has 7 tokens": {"rows": {5: 2}},
    "moves 0 from 6": {"rows": {5: 0}},
    "block ids 16 to 16 are not all in 1..15": {"new_block_rows": packed([0]), "new_block_ids": packed([16])},
    "block ids 0 to 0 are not all in 1..15": {"new_block_rows": packed([0]), "new_block_ids": packed([0])},
    r"gives 1 blocks to rows \[4\]": {"new_block_rows": packed([4]), "new_block_ids": packed([2])},
    r"gives 2 blocks to rows \[0\]": {"new_block_rows": packed([0]), "new_block_ids": packed([2, 3])},
    "cannot be read: torn": {"defect": "torn"},
    "epoch 0 is running": {"new_requests": (new_request(5, [1], [1]),)},
    "starts at 2 of 2 tokens": {"new_requests": (new_request(6, [1, 2], [1], num_computed_tokens=2),)},
    "has 33 tokens": {"new_requests": (new_request(6, [1] * 33, [1] * 9),)},
    "3 of them prompt": {"new_requests": (new_request(6, [1, 2], [1], num_prompt_tokens=3),)},
    "token id 100; the model has 100": {"new_requests": (new_request(6, [100], [1]),)},
    "biases or ends on token id 100": {
        "new_requests": (new_request(6, [1], [1], sampling=Sampling(logit_bias={100: 1.0})),)
    },
    "repetition_penalty that is not positive": {
        "new_requests": (new_request(6, [1], [1], sampling=Sampling(repetition_penalty=0.0)),)
    },
}


@pytest.mark.parametrize("message", BAD_STEPS)
def test_a_step_that_contradicts_the_mirror_is_refused(message: str) -> None:
    changes = dict(BAD_STEPS[message])
    with pytest.raises(BadStep, match=message):
        with_request().apply(step(2, changes.pop("rows", None), **changes))


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(BadStep, match="it has 6 tokens, blocks for 4"):
        make_state().apply(step(1, {5: 6}, new_requests=(new_request(5, [1] * 6, [7]),)))


def test_nothing_is_computed_beyond_max_model_len() -> None:
    state = make_state()
    rows = state.apply(step(1, {5: 32}, new_requests=(new_request(5, [1] * 32, [1, 2, 3, 4, 5, 6, 7, 8, 9]),)))
    state.advance(rows, rows.slots, np.array([1]))
    with pytest.raises(BadStep, match="max_model_len is 32"):
        state.apply(step(2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20), st.booleans()), min_size=1, max_size=40))
def test_slots_are_never_shared_and_hold_what_was_sent(events: list[tuple[int, int, bool]]) -> None:
    """Requests come, come again with a higher epoch, and go, in any order."""
    state, model = make_state(), dict[int, list[int]]()
    for seq, (handle, length, leaves) in enumerate(events, start=1):
        tokens = [(handle * 7 + i) % 100 for i in range(length)]
        released = packed([handle] if leaves else [])
        new = () if leaves else (new_request(handle, tokens, list(range(1, 7)), epoch=seq),)
        model[handle] = tokens
        if leaves:
            del model[handle]
        if model:
            first = next(iter(model))
            state.apply(step(seq, {first: 1}, new_requests=new, released_handles=released))
        else:
            state.drop(step(seq, released_handles=released))
        assert set(state._slot_of) == set(model)
        assert len(set(state._slot_of.values())) == len(model)
        for known, expected in model.items():
            slot = state._slot_of[known]
            assert state.token_ids[slot, : state.num_tokens[slot]].tolist() == expected
