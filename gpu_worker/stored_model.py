"""A model's weights as its files have them, by role and checked against its configuration.

Knows names, shapes and the order of rows; what they are turned into is `weights` and `cpu/weights`'s business.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from gpu_worker.errors import MissingWeights
from gpu_worker.gguf_file import GGUFFile
from gpu_worker.models.config import ModelConfig
from gpu_worker.safetensors_folder import SafetensorsFolder
from gpu_worker.weight_source import BF16, F16, F32, FREQUENCY_DIVISORS, Floats, StoredMatrix, WeightSource, expanded

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A linear layer. Stored row i is output `order[i]` (None: i); the bias is in the order of the outputs."""

    matrix: StoredMatrix
    bias: Floats | None
    order: Indices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayer:
    """One layer; of query and key, and of their norms, the rotated pairs become neighbours."""

    input_norm: Floats
    query_norm: Floats | None
    key_norm: Floats | None
    post_attention_norm: Floats | None
    mlp_norm: Floats
    post_mlp_norm: Floats | None
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    gate: Projection
    up: Projection
    down: Projection


def open_source(weights: Path, weights_format: Literal["gguf", "safetensors"]) -> WeightSource:
    """Raises UnreadableWeights."""
    match weights_format:
        case "gguf":
            return GGUFFile(weights)
        case "safetensors":
            return SafetensorsFolder(weights)


class StoredModel:
    """What a source has for a model of this configuration. Everything raises MissingWeights or UnreadableWeights."""

    def __init__(self, source: WeightSource, config: ModelConfig) -> None:
        self.config = config
        self._source = source
        self._norm_offset = 0.0 if source.has_norm_offset else config.norm_offset

    @property
    def is_quantised(self) -> bool:
        """Whether the products of the layers are; embeddings and norms may be all the same."""
        return self.layer(0).gate.matrix.encoding not in (F32, F16, BF16)

    @property
    def embedding(self) -> StoredMatrix:
        return self._matrix("model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size)

    @property
    def head(self) -> StoredMatrix | None:
        """None: the embedding serves as the head, too."""
        if self.config.tie_word_embeddings or not self._source.has("lm_head.weight"):
            return None
        return self._matrix("lm_head.weight", self.config.vocab_size, self.config.hidden_size)

    @property
    def final_norm(self) -> Floats:
        return self._norm("model.norm.weight", self.config.hidden_size)

    @property
    def frequency_divisors(self) -> Floats | None:
        """[D / 2] what the frequencies of the rotation are divided by; only Llama 3's GGUF files have them."""
        if not (self._source.has_adjacent_pairs and self._source.has(FREQUENCY_DIVISORS)):
            return None
        return self._vector(FREQUENCY_DIVISORS, self.config.head_dim // 2)

    @property
    def layers(self) -> Iterator[StoredLayer]:
        return map(self.layer, range(self.config.num_hidden_layers))

    def layer(self, index: int) -> StoredLayer:
        """Several threads may ask."""
        config, prefix = self.config, f"model.layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        sandwich = config.has_sandwich_norms
        after_attention = f"{prefix}.post_attention_layernorm.weight"
        before_mlp = f"{prefix}.pre_feedforward_layernorm.weight" if sandwich else after_attention
        return StoredLayer(
            input_norm=self._norm(f"{prefix}.input_layernorm.weight", hidden),
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            post_attention_norm=self._norm(after_attention, hidden) if sandwich else None,
            mlp_norm=self._norm(before_mlp, hidden),
            post_mlp_norm=self._norm(f"{prefix}.post_feedforward_layernorm.weight", hidden) if sandwich else None,
            query=self._rotated(f"{attention}.q_proj", config.num_attention_heads),
            key=self._rotated(f"{attention}.k_proj", config.num_key_value_heads),
            value=self._projection(f"{attention}.v_proj", config.num_key_value_heads * config.head_dim, hidden),
            output=self._projection(f"{attention}.o_proj", hidden, config.num_attention_heads * config.head_dim),
            gate=self._projection(f"{mlp}.gate_proj", inner, hidden),
            up=self._projection(f"{mlp}.up_proj", inner, hidden),
            down=self._projection(f"{mlp}.down_proj", hidden, inner),
        )

    def _rotated(self, name: str, num_heads: int) -> Projection:
        head_dim = self.config.head_dim
        stored = self._projection(name, num_heads * head_dim, self.config.hidden_size)
        if self._source.has_adjacent_pairs:
            return stored
        order = adjacent_order(num_heads, head_dim)
        bias = None if stored.bias is None else _ordered(stored.bias, order)
        return Projection(matrix=stored.matrix, bias=bias, order=order)

    def _projection(self, name: str, num_rows: int, num_columns: int) -> Projection:
        bias = self._vector(f"{name}.bias", num_rows) if self._source.has(f"{name}.bias") else None
        return Projection(matrix=self._matrix(f"{name}.weight", num_rows, num_columns), bias=bias, order=None)

    def _head_norm(self, name: str) -> Floats | None:
        """Of the elements of each head of q or k."""
        if not self.config.has_query_key_norm:
            return None
        norm = self._norm(name, self.config.head_dim)
        return norm if self._source.has_adjacent_pairs else _ordered(norm, adjacent_order(1, self.config.head_dim))

    def _norm(self, name: str, size: int) -> Floats:
        return self._vector(name, size) + np.float32(self._norm_offset)

    def _vector(self, name: str, size: int) -> Floats:
        return np.array(expanded(self._matrix(name, 1, size))[0])

    def _matrix(self, name: str, rows: int, columns: int) -> StoredMatrix:
        try:
            stored = self._source.matrix(name)
        except KeyError:
            raise MissingWeights(f"the weights lack {name}; does config.json belong to them?") from None
        if (stored.rows, stored.columns) != (rows, columns):
            asked = f"({rows}, {columns})" if rows > 1 else f"({columns},)"
            raise MissingWeights(f"{name} is ({stored.rows}, {stored.columns}), config.json says {asked}")
        return stored


def adjacent_order(num_heads: int, head_dim: int) -> Indices:
    """Which output each row of a projection becomes whose pairs lie D/2 apart, so that they become neighbours."""
    outputs = np.arange(num_heads * head_dim, dtype=np.int32).reshape(num_heads, head_dim // 2, 2)
    return np.ascontiguousarray(outputs.swapaxes(1, 2)).reshape(-1)


def _ordered(values: Floats, order: Indices) -> Floats:
    """The values in the order of the outputs."""
    result = np.empty_like(values)
    result[order] = values
    return result
