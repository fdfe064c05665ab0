"""Turns the rows of a step into the flat arrays that the model reads. Pure; shared by every attention back end.

Tokens are laid out row after row, but not in the step's order: first the rows of one token ("decode rows", wherever
the request stands), those with the most blocks first, then the longer ones ("chunks"). So decode rows of similar
length are neighbours and can be computed together without reordering any tensor.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.core.batch_state import BatchState, Indices, Rows

MAX_GROUP_TOKENS = 16_384  # K/V positions that decode rows of one group span; bounds the memory of a gather


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Neighbouring decode rows that are computed together, over as many blocks as the longest of them has."""

    first_row: int
    num_rows: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """One step for the model. R rows in layout order, T tokens, S rows that sample in the order of the step."""

    token_ids: Indices  # [T]
    positions: Indices  # [T]
    slot_mapping: Indices  # [T] where each token's K/V goes: block_id * block_size + offset
    query_starts: Indices  # [R + 1] first token of each row
    sequence_lengths: Indices  # [R] tokens that the row's last token sees, itself included
    block_tables: npt.NDArray[np.int32]  # [R, most blocks], padded with the null block
    num_decode_rows: int
    decode_groups: tuple[DecodeGroup, ...]
    sampled_slots: Indices  # [S] slots of the mirror
    sampled_token_indices: Indices  # [S] which of the T tokens their logits come from

    @property
    def num_rows(self) -> int:
        return len(self.sequence_lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def plan(state: BatchState, rows: Rows) -> InputBatch:
    """The flat arrays for `rows`, which `state.apply` has checked. A row samples if it reaches its last known token."""
    block_size = state.block_size
    lengths = state.num_computed_tokens[rows.slots] + rows.num_scheduled_tokens
    num_blocks = -(-lengths // block_size)
    order = _layout(rows.num_scheduled_tokens, num_blocks)
    slots, num_new = rows.slots[order], rows.num_scheduled_tokens[order]
    lengths, num_blocks = lengths[order], num_blocks[order]

    query_starts, token_rows, positions = _tokens(num_new, lengths)
    block_tables = state.block_table[slots, : int(num_blocks.max())]
    if len(slots) > 1:
        block_tables[np.arange(block_tables.shape[1]) >= num_blocks[:, None]] = 0
    block_ids = block_tables[token_rows, positions // block_size].astype(np.int64)

    sampled_rows = np.flatnonzero(lengths == state.num_tokens[slots])
    sampled_rows = sampled_rows[order[sampled_rows].argsort()]
    num_decode_rows = int((num_new == 1).sum())
    return InputBatch(
        token_ids=state.token_ids[slots[token_rows], positions].astype(np.int64),
        positions=positions,
        slot_mapping=block_ids * block_size + positions % block_size,
        query_starts=query_starts,
        sequence_lengths=lengths,
        block_tables=block_tables,
        num_decode_rows=num_decode_rows,
        decode_groups=_groups(num_blocks[:num_decode_rows].tolist(), block_size),
        sampled_slots=slots[sampled_rows],
        sampled_token_indices=query_starts[sampled_rows + 1] - 1,
    )


def _layout(num_new: Indices, num_blocks: Indices) -> Indices:
    """Decode rows first, those with the most blocks first; rows that are equal in this keep their order."""
    if num_new.max() == 1:
        return (-num_blocks).argsort(kind="stable")
    return np.lexsort((-num_blocks * (num_new == 1), num_new > 1))


def _tokens(num_new: Indices, lengths: Indices) -> tuple[Indices, Indices, Indices]:
    """Where each row's tokens start, and the row and position of each token."""
    num_rows = len(num_new)
    if num_new.max() == 1:  # every step while nothing joins
        query_starts = np.arange(num_rows + 1)
        return query_starts, query_starts[:num_rows], lengths - 1
    query_starts = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_starts[1:])
    token_rows = np.repeat(np.arange(num_rows), num_new)
    positions = np.arange(query_starts[-1]) + (lengths - num_new - query_starts[:-1])[token_rows]
    return query_starts, token_rows, positions


def _groups(num_blocks: list[int], block_size: int) -> tuple[DecodeGroup, ...]:
    """Cut decode rows, longest first, so that no row is padded to more than twice its blocks (16 blocks are free)."""
    groups: list[DecodeGroup] = []
    first = 0
    for row in range(1, len(num_blocks) + 1):
        longest = num_blocks[first]
        is_full = (row + 1 - first) * longest * block_size > MAX_GROUP_TOKENS
        if row == len(num_blocks) or is_full or longest > max(2 * num_blocks[row], 16):
            groups.append(DecodeGroup(first_row=first, num_rows=row - first, num_blocks=longest))
            first = row
    return tuple(groups)


def of_null_block(num_tokens: int, block_size: int) -> InputBatch:
    """A row of `num_tokens` tokens without a request, for warming up: its K/V goes to the null block."""
    positions = np.arange(num_tokens)
    num_blocks = -(-num_tokens // block_size)
    return InputBatch(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=positions,
        slot_mapping=positions % block_size,
        query_starts=np.array([0, num_tokens]),
        sequence_lengths=np.array([num_tokens]),
        block_tables=np.zeros((1, num_blocks), dtype=np.int32),
        num_decode_rows=int(num_tokens == 1),
        decode_groups=_groups([num_blocks], block_size) if num_tokens == 1 else (),
        sampled_slots=np.zeros(0, dtype=np.int64),
        sampled_token_indices=np.array([num_tokens - 1]),
    )
