"""The oracle: attention for one row after the other, in float32, in the fewest words.

Shapes: L layers, N blocks, K kv heads, S block size, D head size, T tokens, H heads, C visible tokens, Q new tokens.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their shape

import torch

from gpu_worker.attention.interface import StepAttention
from gpu_worker.core.input_batch import InputBatch


class ReferenceAttention:
    """Gathers a row's K/V, multiplies, masks, normalises, multiplies."""

    name = "reference"

    def __init__(self, kv_NL2KSD: torch.Tensor, num_heads: int) -> None:
        self._kv_NL2KSD = kv_NL2KSD
        self._num_heads = num_heads

    def prepare(self, batch: InputBatch) -> StepAttention:
        def run(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            return self._run(self._kv_NL2KSD[:, layer], batch, qkv)

        return run

    def _run(self, kv_N2KSD: torch.Tensor, batch: InputBatch, qkv: torch.Tensor) -> torch.Tensor:
        _, _, num_kv_heads, block_size, head_dim = kv_N2KSD.shape
        heads_THD = qkv.view(len(qkv), -1, head_dim)
        for token, slot in enumerate(batch.slot_mapping.tolist()):
            kv_N2KSD[slot // block_size, :, :, slot % block_size] = heads_THD[token, self._num_heads :].view(
                2, num_kv_heads, head_dim
            )
        outputs = []
        for row in range(batch.num_rows):
            length = int(batch.sequence_lengths[row])
            blocks = torch.from_numpy(batch.block_tables[row, : -(-length // block_size)]).long()
            k_KCD, v_KCD = kv_N2KSD[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].float()
            first, end = batch.query_starts[row], batch.query_starts[row + 1]
            q_HQD = heads_THD[first:end, : self._num_heads].float().transpose(0, 1)
            group = self._num_heads // num_kv_heads
            scores_HQC = q_HQD @ k_KCD.repeat_interleave(group, 0).transpose(1, 2) / head_dim**0.5
            num_new = int(end - first)
            is_hidden = torch.ones(num_new, length, dtype=torch.bool).triu(length - num_new + 1)
            weights_HQC = scores_HQC.masked_fill(is_hidden, -torch.inf).softmax(-1)
            out_HQD = weights_HQC @ v_KCD.repeat_interleave(group, 0)
            outputs.append(out_HQD.transpose(0, 1).reshape(num_new, -1))
        return torch.cat(outputs).to(qkv.dtype)
