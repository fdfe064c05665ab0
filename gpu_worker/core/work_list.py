"""Cuts the attention of a step into work items that any number of threads can take in any order. Pure arrays.

An item is some tokens of one row and a range of the positions that they see. Decode, chunks and mixed batches are the
same to it. Few and long rows are cut along their K/V, too, at multiples of SEGMENT, and what the pieces give is folded
by reductions. A back end computes an uncut item in the same segments, so that cutting changes no bit of the result.

       positions      0 ......... 512 ........ 1024 ...... 1300
       decode row     |<------------------- item ------------>|      or, cut:
                      |<- item 0 ->|<- item 1 ->|<-- item 2 ->|      folded by one reduction
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int32]

SEGMENT = 512  # positions that are summed before they are folded; OCTAVO_SEGMENT of the kernels
MAX_ITEM_ROWS = 96  # query rows (tokens x heads of a K/V head) of an item; they share every read of K/V
MIN_ITEM_ROWS = 12  # fewer would read K/V more often than arithmetic hides
MAX_PARTIAL_ROWS = 1 << 18  # partials x heads: some 170 MB; a chunk behind a very long prompt would take gigabytes

_UNITS_PER_WORKER = 4  # an item of one K/V head is at most this part of a worker's share, if it can be cut
_READ_COST = 8  # reading a position's K/V takes as long as the arithmetic of so many query rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How attention is spread over heads, and how many workers (threads, multiprocessors) take items."""

    num_heads: int
    num_kv_heads: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkList:
    """The items of one step for all layers with the same window."""

    items: Integers  # [n, 8]: row, first token, tokens, its position, first and end position, first partial or -1, 0
    reductions: Integers  # [m, 4]: token, first partial, number of partials, distance between them
    num_partials: int
    window: int


def plan(query_starts: Integers, sequence_lengths: Integers, *, heads: Heads, window: int = 0) -> WorkList:
    """Items, the longest first, that cover every pair of a token and a position it sees exactly once.

    Row r has the tokens from query_starts[r] to before query_starts[r + 1], the last tokens of its
    sequence_lengths[r]. A token sees itself and the window - 1 positions before it; all before it if window is 0.
    """
    items = _uncut(query_starts, sequence_lengths, heads, window)
    cost = _cost(items, heads)
    num_segments = (items[:, 5] - 1) // SEGMENT - items[:, 4] // SEGMENT + 1
    reductions, num_partials = np.zeros((0, 4), dtype=np.int32), 0
    is_cut = _is_cut(items[:, 2] * num_segments, num_segments, cost, heads=heads)
    if is_cut is not None:
        pieces, reductions = _cut(items[is_cut], num_segments[is_cut])
        num_partials = int(items[is_cut, 2] @ num_segments[is_cut])
        items = np.concatenate((pieces, items[~is_cut]))
        cost = _cost(items, heads)
    order = np.argsort(-cost, kind="stable")
    return WorkList(items=items[order], reductions=reductions, num_partials=num_partials, window=window)


def _is_cut(
    num_partials: Integers, num_segments: Integers, cost: npt.NDArray[np.int64], *, heads: Heads
) -> npt.NDArray[np.bool_] | None:
    """Which items are too large a part of a worker's share, as far as there is memory; None if no item is."""
    if heads.num_workers == 1 or num_segments.max() == 1:
        return None
    largest = cost.sum() * heads.num_kv_heads / (heads.num_workers * _UNITS_PER_WORKER)
    is_cut = (num_segments > 1) & (cost > largest)
    is_cut &= np.cumsum(num_partials * is_cut) <= MAX_PARTIAL_ROWS // heads.num_heads
    return is_cut if is_cut.any() else None


def _uncut(query_starts: Integers, sequence_lengths: Integers, heads: Heads, window: int) -> Integers:
    """One item for every few tokens of a row, over all the positions that they see."""
    if query_starts[-1] == len(sequence_lengths):
        return _of_single_tokens(sequence_lengths, window)
    num_new = np.diff(query_starts)
    tokens_per_item = _tokens_per_item(int(query_starts[-1]), heads)
    items_of_row = -(-num_new // tokens_per_item)
    ends = np.cumsum(items_of_row)
    rows = np.repeat(np.arange(len(num_new)), items_of_row)
    first = (np.arange(len(rows)) - (ends - items_of_row)[rows]) * tokens_per_item
    items = np.zeros((len(rows), 8), dtype=np.int32)
    items[:, 0] = rows
    items[:, 1] = query_starts[rows] + first
    items[:, 2] = np.minimum(num_new[rows] - first, tokens_per_item)
    items[:, 3] = (sequence_lengths - num_new)[rows] + first
    if window:
        items[:, 4] = np.maximum(items[:, 3] - (window - 1), 0)
    items[:, 5] = items[:, 3] + items[:, 2]
    items[:, 6] = -1
    return items


def _of_single_tokens(sequence_lengths: Integers, window: int) -> Integers:
    """One item for every row, each of one token: most steps are so."""
    items = np.zeros((len(sequence_lengths), 8), dtype=np.int32)
    items[:, 0] = items[:, 1] = np.arange(len(items))
    items[:, 2] = 1
    items[:, 3] = sequence_lengths - 1
    if window:
        items[:, 4] = np.maximum(sequence_lengths - window, 0)
    items[:, 5] = sequence_lengths
    items[:, 6] = -1
    return items


def _tokens_per_item(num_tokens: int, heads: Heads) -> int:
    """As many as share K/V well, but so few that every worker gets some items."""
    group = heads.num_heads // heads.num_kv_heads
    fair = num_tokens * heads.num_kv_heads // (_UNITS_PER_WORKER * heads.num_workers)
    least, most = -(-MIN_ITEM_ROWS // group), max(1, MAX_ITEM_ROWS // group)
    return min(max(least, fair), most)


def _cost(items: Integers, heads: Heads) -> npt.NDArray[np.int64]:
    """How long the items take, relative to each other."""
    rows = items[:, 2].astype(np.int64) * (heads.num_heads // heads.num_kv_heads)
    return (items[:, 5] - items[:, 4]) * (rows + _READ_COST)


def _cut(items: Integers, num_segments: Integers) -> tuple[Integers, Integers]:
    """An item for every segment of every item, and a reduction for every token."""
    tokens = items[:, 2]
    num_partials = tokens * num_segments
    first_partials = np.cumsum(num_partials) - num_partials
    source, segment = _enumerate(num_segments)
    pieces = items[source]
    starts = (items[source, 4] // SEGMENT + segment) * SEGMENT
    pieces[:, 4] = np.maximum(items[source, 4], starts)
    pieces[:, 5] = np.minimum(items[source, 5], starts + SEGMENT)
    pieces[:, 6] = first_partials[source] + segment * tokens[source]
    source, token = _enumerate(tokens)
    reductions = np.stack(
        (items[source, 1] + token, first_partials[source] + token, num_segments[source], tokens[source]), axis=1
    )
    return pieces, reductions.astype(np.int32)


def _enumerate(counts: Integers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For counts [2, 3]: whose [0, 0, 1, 1, 1] and which [0, 1, 0, 1, 2]."""
    whose = np.repeat(np.arange(len(counts)), counts)
    return whose, np.arange(len(whose)) - (np.cumsum(counts) - counts)[whose]
