"""What the model asks of an attention back end."""

from dataclasses import dataclass
from typing import Protocol

import torch

from gpu_worker.core.input_batch import InputBatch
from gpu_worker.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Attention of all layers of a model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    soft_cap: float | None  # a score x becomes cap * tanh(x / cap)
    windows: tuple[int, ...]  # a layer: a token sees itself and window - 1 before it; 0: all before it


class StepAttention(Protocol):
    """Attention for one step, its index lists ready for every layer."""

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Store the K/V of `qkv` [T, (heads + 2 kv_heads) * D] (q and k rotated) and return [T, heads * D]."""
        ...


class Attention(Protocol):
    """A back end over the K/V memory that it was made with."""

    name: str

    def prepare(self, batch: InputBatch) -> StepAttention:
        """Turn the step's block tables into what the layers need, once."""
        ...


def shape_of(config: ModelConfig) -> AttentionShape:
    """The attention of a model."""
    return AttentionShape(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        soft_cap=config.attention_soft_cap,
        windows=config.windows,
    )
