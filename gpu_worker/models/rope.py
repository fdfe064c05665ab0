"""Rotary position embedding as one complex multiplication per head.

The two halves of a rotated pair are neighbours in Octavo's q, k and K/V cache (index 2i and 2i + 1), so a head of D
numbers is read as D/2 complex ones. Files that keep the pairs D/2 apart have their q and k rows reordered once, when
the weights are loaded (`stored_model.py`); scores do not depend on the order.

Shapes: M positions, T tokens, H heads, D head size.
"""

# ruff: noqa: N803 - tensors carry the letters of their shape

import math

import torch

from gpu_worker.models.config import ModelConfig, RopeScaling


def rotations_of_layers(
    config: ModelConfig, num_positions: int, frequency_divisors: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """[M, 1, D/2] complex64 of each layer: position m turns pair i by m times its frequency. Equal ones are shared.

    `frequency_divisors` (one per pair; Llama-3 GGUF files carry them) stand in for the configuration's scaling.
    """
    frequencies = _frequencies(config.rope_theta, config.head_dim)
    if frequency_divisors is not None:
        frequencies = frequencies / frequency_divisors.float()
    elif config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    everywhere = _rotations(frequencies, num_positions)
    if config.local_rope_theta is None:
        return (everywhere,) * config.num_hidden_layers
    local = _rotations(_frequencies(config.local_rope_theta, config.head_dim), num_positions)
    return tuple(local if window else everywhere for window in config.windows)


def rotate_(x_THD: torch.Tensor, rotations_T1d: torch.Tensor) -> None:
    """Turn every pair of `x` in place; computed in float32 whatever the type of `x`."""
    pairs = x_THD.unflatten(-1, (-1, 2))
    if x_THD.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotations_T1d)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(rotations_T1d)))


def _frequencies(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (theta**exponents)


def _rotations(frequencies: torch.Tensor, num_positions: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return torch.complex(angles.cos(), angles.sin()).unsqueeze(1)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    num_turns = scaling.original_max_position_embeddings / wavelengths
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((num_turns - scaling.low_freq_factor) / span).clamp(0, 1)  # 0 = slow pairs, scaled; 1 = fast ones, kept
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies
