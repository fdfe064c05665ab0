"""What the model asks of an attention back end."""

from typing import Protocol

import torch

from gpu_worker.core.input_batch import InputBatch


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
