"""The forward pass of every family in PyTorch: exact in float32, and the way of what the C++ library does not take.

What the families differ in is said by ModelConfig and by which norms a layer has. The residual stream and all norms are
float32, products are in the type of the weights. Knows nothing of requests, blocks or files.

Shapes: T tokens, E hidden size, H heads (query and key), D head size, d = D / 2, S rows that sample, V vocabulary.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their shape

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from gpu_worker.attention.interface import Attention, StepAttention
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.linear import Linear
from gpu_worker.models import rope
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.interface import Forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer; products that share their input are fused. Norms are float32."""

    input_norm: torch.Tensor
    query_norm: torch.Tensor | None  # of each head, its elements in the order of the rows of q
    key_norm: torch.Tensor | None
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor | None  # of what attention gives, before it is added
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    post_mlp_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWeights:
    """Weights of the whole model."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor
    head: Linear
    frequency_divisors: torch.Tensor | None
    num_bytes: int


class TorchModel:
    """A loaded model over an attention back end; stateless between calls."""

    def __init__(self, config: ModelConfig, weights: TorchWeights, attention: Attention, *, max_model_len: int) -> None:
        self._config = config
        self._weights = weights
        self._attention = attention
        self._rotations = rope.rotations_of_layers(config, max_model_len, weights.frequency_divisors)

    def prepare(self, batch: InputBatch) -> Forward:
        """Plan a step; the call stores the K/V of all its tokens and gives the logits [S, V] of those that sample."""
        return partial(
            self._forward,
            token_ids=torch.from_numpy(batch.token_ids),
            positions=torch.from_numpy(batch.positions),
            sampled=torch.from_numpy(batch.sampled_token_indices),
            attention=self._attention.prepare(batch),
        )

    def _forward(
        self, *, token_ids: torch.Tensor, positions: torch.Tensor, sampled: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        weights = self._weights
        turns = {table: table[positions] for table in set(self._rotations)}
        x_TE = F.embedding(token_ids, weights.embedding).float() * self._config.embedding_scale
        for index, layer in enumerate(weights.layers):
            qkv = self._qkv(layer, x_TE, turns[self._rotations[index]])
            x_TE += self._normed(layer.output(attention(index, qkv)), layer.post_attention_norm)
            x_TE += self._normed(self._mlp(layer, x_TE), layer.post_mlp_norm)
        if not len(sampled):
            return x_TE.new_empty(0, self._config.vocab_size)
        logits_SV = weights.head(self._input(x_TE[sampled], weights.final_norm))
        cap = self._config.logit_soft_cap
        return logits_SV if cap is None else logits_SV.float().div_(cap).tanh_().mul_(cap)

    def _qkv(self, layer: Layer, x_TE: torch.Tensor, turns_T1d: torch.Tensor) -> torch.Tensor:
        """[T, (heads + 2 kv_heads) * D], q and k normed and rotated."""
        config = self._config
        qkv = layer.qkv(self._input(x_TE, layer.input_norm))
        heads_THD = qkv.unflatten(-1, (-1, config.head_dim))
        num_rotated = config.num_attention_heads + config.num_key_value_heads
        if layer.query_norm is not None:
            q_THD = heads_THD[:, : config.num_attention_heads]
            k_THD = heads_THD[:, config.num_attention_heads : num_rotated]
            q_THD.copy_(self._normed(q_THD, layer.query_norm))
            k_THD.copy_(self._normed(k_THD, layer.key_norm))
        rope.rotate_(heads_THD[:, :num_rotated], turns_T1d)
        return qkv

    def _mlp(self, layer: Layer, x_TE: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._input(x_TE, layer.mlp_norm)).chunk(2, -1)
        match self._config.activation:
            case "silu":
                activated = F.silu(gate)
            case "gelu_tanh":
                activated = F.gelu(gate, approximate="tanh")
        return layer.down(activated.mul_(up))

    def _input(self, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """What a product of the model's type gets."""
        return self._normed(x, norm).to(self._weights.embedding.dtype)

    def _normed(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return x if norm is None else F.rms_norm(x.float(), norm.shape, norm, self._config.rms_norm_eps)
