"""The forward pass of the Llama family: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Knows nothing of requests, blocks or files: it gets flat tokens with their positions, and attention for the step.
Shapes: T tokens, E hidden size, H heads (query and key), D head size, S rows that sample, V vocabulary.
"""

# ruff: noqa: N806 - tensors carry the letters of their shape

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from gpu_worker.attention.interface import StepAttention
from gpu_worker.linear import Linear
from gpu_worker.models import rope
from gpu_worker.models.llama_config import LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer; products that share their input are fused."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """Weights of the whole model."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor
    head: Linear
    frequency_divisors: torch.Tensor | None
    num_bytes: int


class Llama:
    """A loaded model; stateless between calls."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, *, max_model_len: int) -> None:
        self.config = config
        self._weights = weights
        self._rotations_M1d = rope.rotations(config, max_model_len, weights.frequency_divisors)
        self._num_rotated = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention, sampled: torch.Tensor
    ) -> torch.Tensor:
        """Logits [S, V] of the tokens with the indices `sampled`; stores the K/V of all tokens."""
        head_dim = self.config.head_dim
        rotations_T1d = self._rotations_M1d[positions]
        x_TE = F.embedding(token_ids, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            qkv = layer.qkv(self._norm(x_TE, layer.input_norm))
            rope.rotate_(qkv[:, : self._num_rotated].unflatten(-1, (-1, head_dim)), rotations_T1d)
            x_TE += layer.output(attention(index, qkv))
            gate, up = layer.gate_up(self._norm(x_TE, layer.post_attention_norm)).chunk(2, -1)
            x_TE += layer.down(F.silu(gate).mul_(up))
        if not len(sampled):
            return x_TE.new_empty(0, self.config.vocab_size)
        return self._weights.head(self._norm(x_TE[sampled], self._weights.final_norm))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)
