"""Attention with ordinary torch operations, arranged so that a CPU does few and large ones.

Decode rows of a group are one batch: their K/V is gathered once per layer (a row of memory per block, half and head),
and the query heads that share a K/V head are the rows of one small matrix. Chunks go one by one, in tiles of queries
that see only the keys before them, so that only the last square of a tile needs a mask.

With K/V in bfloat16 products are too, and softmax is computed in float32. With K/V in float32 all is computed in
float64 and rounded once, so that the result does not depend on the order of sums: a token's attention has the same bits
alone, in any chunk and in any batch, and an answer that is computed again after a fault goes on as it would have.

Shapes: N blocks, K kv heads, S block size, D head size, G heads per kv head, T tokens, B rows of a group, C visible
tokens, Q queries of a tile.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their shape

from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.attention.interface import AttentionShape, StepAttention
from gpu_worker.core.input_batch import DecodeGroup, InputBatch

TILE_QUERIES = 64  # of a chunk; its scores stay in the second-level cache up to some thousand keys


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Decode rows that are computed together."""

    tokens: slice
    kv_rows: torch.Tensor  # [2 * B * K * blocks] rows of memory: K of all, then V of all
    masks: dict[int, torch.Tensor]  # of a window: 0 or -inf, [B * K, 1, C]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """One row of several tokens."""

    tokens: slice
    kv_rows: torch.Tensor  # [2 * K * blocks]
    first_position: int


class BatchedAttention:
    """The back end of a CPU without kernels of our own."""

    name = "torch_batched"

    def __init__(self, kv_NL2KSD: torch.Tensor, shape: AttentionShape) -> None:
        _, num_layers, _, num_kv_heads, block_size, head_dim = kv_NL2KSD.shape
        self._shape = shape
        self._block_size = block_size
        # To read, memory is rows, one per (block, layer, half, head). A layer's rows begin 2 * K further than those of
        # the layer before, so a view that begins there lets every layer use the indices of the first.
        rows = kv_NL2KSD.view(-1, block_size * head_dim)
        self._rows = [rows[2 * num_kv_heads * layer :] for layer in range(num_layers)]
        self._rows_per_block = num_layers * 2 * num_kv_heads
        self._slots = [kv_NL2KSD[:, i].permute(0, 3, 1, 2, 4) for i in range(num_layers)]  # to write: [block, offset]
        self._dtype = torch.float64 if kv_NL2KSD.dtype == torch.float32 else kv_NL2KSD.dtype
        self._nothing = torch.zeros(1, dtype=self._dtype)

    def prepare(self, batch: InputBatch) -> StepAttention:
        slots = torch.from_numpy(batch.slot_mapping)
        blocks, offsets = slots // self._block_size, slots % self._block_size
        groups = [self._group(batch, group) for group in batch.decode_groups]
        chunks = [self._chunk(batch, row) for row in range(batch.num_decode_rows, batch.num_rows)]
        kv_start = self._shape.num_heads * self._shape.head_dim

        def run(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            kv_T2KD = qkv[:, kv_start:].unflatten(-1, (2, self._shape.num_kv_heads, self._shape.head_dim))
            self._slots[layer].index_put_((blocks, offsets), kv_T2KD)
            parts = [self._decode(layer, qkv, group) for group in groups]
            parts += [self._prefill(layer, qkv, chunk) for chunk in chunks]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return run

    def _group(self, batch: InputBatch, group: DecodeGroup) -> _Group:
        rows = slice(group.first_row, group.first_row + group.num_rows)
        positions = torch.arange(group.num_blocks * self._block_size)
        lengths = torch.from_numpy(batch.sequence_lengths[rows, None])
        masks = {window: self._mask(positions, lengths - 1, window) for window in set(self._shape.windows)}
        return _Group(
            tokens=rows,  # a decode row is one token, and they come first
            kv_rows=self._kv_rows(batch.block_tables[rows, : group.num_blocks]),
            masks={w: mask.repeat_interleave(self._shape.num_kv_heads, 0)[:, None] for w, mask in masks.items()},
        )

    def _chunk(self, batch: InputBatch, row: int) -> _Chunk:
        first, end = int(batch.query_starts[row]), int(batch.query_starts[row + 1])
        length = int(batch.sequence_lengths[row])
        num_blocks = -(-length // self._block_size)
        return _Chunk(
            tokens=slice(first, end),
            kv_rows=self._kv_rows(batch.block_tables[row : row + 1, :num_blocks]),
            first_position=length - (end - first),
        )

    def _kv_rows(self, block_tables: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> torch.Tensor:
        """Rows of memory of the first layer, in the order (half, request, head, block)."""
        halves_and_heads = torch.arange(2 * self._shape.num_kv_heads).view(2, 1, -1, 1)
        blocks = torch.from_numpy(block_tables).long()[None, :, None, :]
        return (blocks * self._rows_per_block + halves_and_heads).reshape(-1)

    def _decode(self, layer: int, qkv: torch.Tensor, group: _Group) -> torch.Tensor:
        mask = group.masks[self._shape.windows[layer]]
        k_BKCD, v_BKCD = self._read(layer, group.kv_rows).view(2, len(mask), -1, self._shape.head_dim)
        q_T = qkv[group.tokens, : self._shape.num_heads * self._shape.head_dim].to(self._dtype)
        q_BKGD = q_T.reshape(len(mask), -1, self._shape.head_dim)
        scores = self._scores(q_BKGD, k_BKCD).add_(mask)
        return torch.bmm(self._weights(scores), v_BKCD).view(len(q_T), -1).to(qkv.dtype)

    def _prefill(self, layer: int, qkv: torch.Tensor, chunk: _Chunk) -> torch.Tensor:
        shape, window = self._shape, self._shape.windows[layer]
        k_KCD, v_KCD = self._read(layer, chunk.kv_rows).view(2, shape.num_kv_heads, -1, shape.head_dim)
        q_T = qkv[chunk.tokens, : shape.num_heads * shape.head_dim].to(self._dtype)
        group = shape.num_heads // shape.num_kv_heads
        q_KTGD = q_T.unflatten(-1, (shape.num_kv_heads, group * shape.head_dim)).transpose(0, 1)
        num_tokens = len(q_T)
        out_TH = torch.empty(num_tokens, shape.num_kv_heads, group * shape.head_dim, dtype=qkv.dtype)
        for first in range(0, num_tokens, TILE_QUERIES):
            end = min(first + TILE_QUERIES, num_tokens)
            positions = torch.arange(chunk.first_position + first, chunk.first_position + end)
            oldest = max(0, int(positions[0]) + 1 - window) if window else 0
            seen = slice(oldest, int(positions[-1]) + 1)
            q_KQD = q_KTGD[:, first:end].reshape(shape.num_kv_heads, -1, shape.head_dim)
            scores = self._scores(q_KQD, k_KCD[:, seen])
            partly = seen if window else slice(int(positions[0]), seen.stop)  # without a window all see what is older
            mask = self._mask(torch.arange(partly.start, partly.stop), positions[:, None], window)
            scores.unflatten(1, (end - first, group))[..., partly.start - oldest :] += mask[:, None]
            out_KQD = torch.bmm(self._weights(scores), v_KCD[:, seen])
            out_TH[first:end] = out_KQD.view(shape.num_kv_heads, end - first, -1).transpose(0, 1)
        return out_TH.view(num_tokens, -1)

    def _read(self, layer: int, kv_rows: torch.Tensor) -> torch.Tensor:
        return self._rows[layer].index_select(0, kv_rows).to(self._dtype)

    def _scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.baddbmm(self._nothing, q, k.transpose(1, 2), beta=0, alpha=self._shape.scale)
        cap = self._shape.soft_cap
        return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)

    def _mask(self, positions: torch.Tensor, queries: torch.Tensor, window: int) -> torch.Tensor:
        """[queries, positions]: 0 where a query sees a position, else -inf."""
        is_hidden = positions > queries
        if window:
            is_hidden |= positions <= queries - window
        return torch.zeros(is_hidden.shape, dtype=self._dtype).masked_fill_(is_hidden, -torch.inf)

    def _weights(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -1, dtype=torch.promote_types(self._dtype, torch.float32)).to(self._dtype)
