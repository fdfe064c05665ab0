"""The oracle: attention for one row after the other, in float32, in the fewest words.

Shapes: L layers, N blocks, K kv heads, S block size, D head size, T tokens, H heads, C visible tokens, Q new tokens.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their shape

import torch

from gpu_worker.attention.interface import AttentionShape, StepAttention
from gpu_worker.core.input_batch import InputBatch


class ReferenceAttention:
    """Gathers a row's K/V, multiplies, caps, masks, normalises, multiplies."""

    name = "reference"

    def __init__(self, kv_NL2KSD: torch.Tensor, shape: AttentionShape) -> None:
        self._kv_NL2KSD = kv_NL2KSD
        self._shape = shape

    def prepare(self, batch: InputBatch) -> StepAttention:
        def run(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            heads_THD = qkv.view(len(qkv), -1, self._shape.head_dim)
            self._store(self._kv_NL2KSD[:, layer], batch, heads_THD[:, self._shape.num_heads :])
            queries_THD = heads_THD[:, : self._shape.num_heads].float()
            rows = [self._row(layer, batch, row, queries_THD) for row in range(batch.num_rows)]
            return torch.cat(rows).to(qkv.dtype)

        return run

    def _store(self, kv_N2KSD: torch.Tensor, batch: InputBatch, kv_THD: torch.Tensor) -> None:
        block_size = kv_N2KSD.shape[3]
        for token, slot in enumerate(batch.slot_mapping.tolist()):
            kv_2KD = kv_THD[token].view(2, -1, self._shape.head_dim)
            kv_N2KSD[slot // block_size, :, :, slot % block_size] = kv_2KD

    def _row(self, layer: int, batch: InputBatch, row: int, queries_THD: torch.Tensor) -> torch.Tensor:
        shape, block_size = self._shape, self._kv_NL2KSD.shape[4]
        length = int(batch.sequence_lengths[row])
        blocks = torch.from_numpy(batch.block_tables[row, : -(-length // block_size)]).long()
        kv_N2KSD = self._kv_NL2KSD[blocks, layer]
        k_KCD, v_KCD = kv_N2KSD.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].float()
        first, end = batch.query_starts[row], batch.query_starts[row + 1]
        q_HQD = queries_THD[first:end].transpose(0, 1)
        group = shape.num_heads // shape.num_kv_heads
        scores_HQC = q_HQD @ k_KCD.repeat_interleave(group, 0).transpose(1, 2) * shape.scale
        if shape.soft_cap is not None:
            scores_HQC = shape.soft_cap * torch.tanh(scores_HQC / shape.soft_cap)
        is_hidden_QC = _is_hidden(int(end - first), length, shape.windows[layer])
        weights_HQC = scores_HQC.masked_fill(is_hidden_QC, -torch.inf).softmax(-1)
        out_HQD: torch.Tensor = weights_HQC @ v_KCD.repeat_interleave(group, 0)
        return out_HQD.transpose(0, 1).flatten(1)


def _is_hidden(num_new: int, length: int, window: int) -> torch.Tensor:
    """Which of `length` positions the last `num_new` of them do not see: later ones, and those before the window."""
    seen_from = torch.arange(length - num_new, length)[:, None]
    position = torch.arange(length)
    is_hidden: torch.Tensor = position > seen_from
    if window:
        is_hidden |= position <= seen_from - window
    return is_hidden
