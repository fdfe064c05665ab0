"""Small random models for the fused step, and the oracle that computes them in float64 from the same weights.

The oracle rounds where the kernels say that they round (bfloat16 between products, or int8 per 32 inputs) and nowhere
else, so that what is left between the two is the order of sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, dequantize, quantize

from gpu_worker.core import input_batch
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.cpu.fused_model import FusedModel
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight, Packer
from gpu_worker.cpu.weights import CpuLayer, CpuWeights
from gpu_worker.models.config import ModelConfig
from gpu_worker.weight_source import StoredMatrix

Floats = npt.NDArray[np.float64]

BLOCK_SIZE = 16
MAX_LEN = 2048
VOCAB_SIZE = 203  # no multiple of a tile

_TYPES = {"bf16": "BF16", "q4": "Q4_1", "q8": "Q8_0"}
NAMES = ("query", "key", "value", "output", "gate", "up", "down")
FORMATS: dict[str, Mapping[str, str]] = {
    "bf16": dict.fromkeys((*NAMES, "embedding"), "bf16"),
    "q4": {**dict.fromkeys(NAMES, "q4"), "embedding": "q8"},
    "q8": dict.fromkeys((*NAMES, "embedding"), "q8"),
    "mixed": {**dict.fromkeys(NAMES, "q4"), "value": "bf16", "down": "bf16", "key": "q8", "embedding": "q8"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "biased": {"has_bias": True},
    "head_norms": {"has_query_key_norm": True, "head_dim": 48},
    "gemma": {
        "has_query_key_norm": True, "has_sandwich_norms": True, "activation": "gelu_tanh", "windows": (20, 0, 20),
        "embedding_scale": 9.8, "attention_scale": 0.2, "attention_soft_cap": 8.0, "logit_soft_cap": 15.0,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """Weights once as the kernels have them and once as numbers."""

    config: ModelConfig
    packed: CpuWeights
    layers: tuple[dict[str, Any], ...]  # by name: norms, biases, and matrices with their format
    embedding: tuple[Floats, str]
    final_norm: Floats
    rotations: Floats  # [M, D / 2, 2]

    def fused(self, kernels: Library, *, num_threads: int = 1, num_blocks: int = 256) -> FusedModel:
        config = self.config
        block_bytes = 4 * config.num_hidden_layers * config.num_key_value_heads * BLOCK_SIZE * config.head_dim
        kv = np.zeros((num_blocks, block_bytes), dtype=np.uint8)
        return FusedModel(kernels, config, self.packed, kv=kv, block_size=BLOCK_SIZE, num_threads=num_threads)

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """Of the last token, by the oracle."""
        x = self.embedding[0][list(token_ids)] * self.config.embedding_scale
        for index, layer in enumerate(self.layers):
            h = _normed(x, layer["input_norm"], self.config.rms_norm_eps)
            x = x + self._branch(self._attention(layer, index, h), layer.get("post_attention_norm"))
            h = _normed(x, layer["mlp_norm"], self.config.rms_norm_eps)
            hidden = _activated(self.config.activation, product(layer, "gate", h)) * product(layer, "up", h)
            x = x + self._branch(product(layer, "down", hidden), layer.get("post_mlp_norm"))
        last = _normed(x[-1:], self.final_norm, self.config.rms_norm_eps)
        matrix, kind = self.embedding
        logits: Floats = (rounded(last, kind) @ matrix.T)[0]
        cap = self.config.logit_soft_cap
        return cap * np.tanh(logits / cap) if cap else logits

    def _branch(self, given: Floats, norm: Floats | None) -> Floats:
        return given if norm is None else _normed(given, norm, self.config.rms_norm_eps)

    def _attention(self, layer: dict[str, Any], index: int, h: Floats) -> Floats:
        config, num_tokens = self.config, len(h)
        heads = {"query": config.num_attention_heads, "key": config.num_key_value_heads}
        q, k = (
            self._rotated(layer, name, product(layer, name, h).reshape(num_tokens, n, -1)) for name, n in heads.items()
        )
        v = to_bf16(product(layer, "value", h).reshape(num_tokens, config.num_key_value_heads, -1))
        group = config.num_attention_heads // config.num_key_value_heads
        scores = np.einsum("thd,shd->hts", q, k.repeat(group, axis=1)) * config.attention_scale
        if config.attention_soft_cap:
            scores = config.attention_soft_cap * np.tanh(scores / config.attention_soft_cap)
        distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)[None, :]
        hidden = (distance < 0) | (distance >= (config.windows[index] or num_tokens))
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weights, v.repeat(group, axis=1)).reshape(num_tokens, -1)
        return product(layer, "output", to_bf16(attended))

    def _rotated(self, layer: dict[str, Any], name: str, x: Floats) -> Floats:
        if (norm := layer.get(f"{name}_norm")) is not None:
            x = _normed(x, norm, self.config.rms_norm_eps)
        turns = self.rotations[: len(x), None, :, 0] + 1j * self.rotations[: len(x), None, :, 1]
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
        return to_bf16(np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape))


def make(kernels: Library, shape: str = "llama", formats: str = "bf16", *, seed: int = 0) -> RandomModel:
    """A model of one of SHAPES, its matrices stored in one of FORMATS."""
    rng = np.random.default_rng(seed)
    changes = dict(SHAPES[shape])
    has_bias = changes.pop("has_bias", False)
    shape_config = config(**changes)
    packer = Packer(kernels, as_stored=True)
    rotations = _rotations(shape_config)
    layers, packed = [], []
    for _ in range(shape_config.num_hidden_layers):
        numbers, layer = _layer(
            rng, shape_config, packer, formats=FORMATS[formats], has_bias=has_bias, rotations=rotations
        )
        layers.append(numbers)
        packed.append(layer)
    kind = FORMATS[formats]["embedding"]
    embedding, stored = _matrix(rng, VOCAB_SIZE, shape_config.hidden_size, kind=kind, scale=0.5)
    head = packer.pack(stored)
    final_norm = _norm(rng, shape_config.hidden_size)
    weights = CpuWeights(embedding=head, head=head, final_norm=final_norm, layers=tuple(packed), num_bytes=0)
    return RandomModel(
        config=shape_config,
        packed=weights,
        layers=tuple(layers),
        embedding=(embedding, kind),
        final_norm=final_norm.astype(np.float64),
        rotations=rotations.astype(np.float64),
    )


def batch(*rows: tuple[Sequence[int], int, Sequence[int]]) -> InputBatch:
    """Rows of (token ids, how many tokens were computed before, blocks), in this order; every row samples."""
    starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)])
    positions = [computed + np.arange(len(tokens)) for tokens, computed, _ in rows]
    tables = np.zeros((len(rows), max(len(blocks) for _, _, blocks in rows)), dtype=np.int32)
    for table, (_, _, blocks) in zip(tables, rows, strict=True):
        table[: len(blocks)] = blocks
    slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for table, p in zip(tables, positions, strict=True)]
    return input_batch.InputBatch(
        token_ids=np.concatenate([np.array(tokens, dtype=np.int64) for tokens, _, _ in rows]),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_starts=starts,
        sequence_lengths=np.array([computed + len(tokens) for tokens, computed, _ in rows]),
        block_tables=tables,
        num_decode_rows=sum(len(tokens) == 1 for tokens, _, _ in rows),
        decode_groups=(),
        sampled_slots=np.arange(len(rows)),
        sampled_token_indices=starts[1:] - 1,
    )


def random_ids(seed: int, count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCAB_SIZE, count).tolist()
    return ids


def to_bf16(x: Floats) -> Floats:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return nearest.view(np.float32).astype(np.float64)


def to_int8(x: Floats) -> Floats:
    """Each 32 neighbours on a grid of 255 points."""
    groups = x.reshape(-1, 32)
    scales = np.abs(groups).max(-1, keepdims=True) / 127
    with np.errstate(invalid="ignore"):
        return np.where(scales > 0, np.rint(groups / scales) * scales, 0.0).reshape(x.shape)


def rounded(x: Floats, kind: str) -> Floats:
    return to_bf16(x) if kind == "bf16" else to_int8(x)


def product(layer: dict[str, Any], name: str, x: Floats) -> Floats:
    matrix, kind = layer[name]
    given: Floats = rounded(x, kind) @ matrix.T
    return given + layer[f"{name}_bias"] if f"{name}_bias" in layer else given


def config(**changes: Any) -> ModelConfig:
    chosen: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "local_rope_theta": None, "windows": (0, 0, 0),
        "activation": "silu", "has_query_key_norm": False, "has_sandwich_norms": False, "norm_offset": 0.0,
        "embedding_scale": 1.0, "attention_scale": 32**-0.5, "attention_soft_cap": None, "logit_soft_cap": None,
        "max_position_embeddings": MAX_LEN, "tie_word_embeddings": True, **changes,
    }  # fmt: skip
    return ModelConfig(**chosen)


def _rotations(config: ModelConfig) -> npt.NDArray[np.float32]:
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.arange(MAX_LEN)[:, None] * frequencies
    return np.stack((np.cos(angles), np.sin(angles)), axis=-1).astype(np.float32)


def _norm(rng: np.random.Generator, size: int) -> npt.NDArray[np.float32]:
    return rng.normal(1.0, 0.3, size).astype(np.float32)


def _matrix(
    rng: np.random.Generator, rows: int, columns: int, *, kind: str, scale: float
) -> tuple[Floats, StoredMatrix]:
    type_ = GGMLQuantizationType[_TYPES[kind]]
    data = quantize(rng.normal(0, scale, (rows, columns)).astype(np.float32), type_)
    stored = StoredMatrix(encoding=int(type_), rows=rows, columns=columns, data=data)
    return dequantize(data, type_).astype(np.float64), stored


def _layer(
    rng: np.random.Generator,
    config: ModelConfig,
    packer: Packer,
    *,
    formats: Mapping[str, str],
    has_bias: bool,
    rotations: npt.NDArray[np.float32],
) -> tuple[dict[str, Any], CpuLayer]:
    size, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    shapes = {
        "query": (queries, size), "key": (keys, size), "value": (keys, size), "output": (size, queries),
        "gate": (config.intermediate_size, size), "up": (config.intermediate_size, size),
        "down": (size, config.intermediate_size),
    }  # fmt: skip
    numbers: dict[str, Any] = {}
    packed: dict[str, PackedWeight] = {}
    for name, (rows, columns) in shapes.items():
        matrix, stored = _matrix(rng, rows, columns, kind=formats[name], scale=1.5 / columns**0.5)
        bias = rng.normal(0, 0.5, rows).astype(np.float32) if has_bias else None
        packed[name] = packer.pack(stored, bias=bias)
        numbers[name] = (matrix, formats[name])
        if bias is not None:
            numbers[f"{name}_bias"] = bias.astype(np.float64)
    norms: dict[str, npt.NDArray[np.float32] | None] = {"input_norm": _norm(rng, size), "mlp_norm": _norm(rng, size)}
    for name, is_there, width in (
        ("query_norm", config.has_query_key_norm, head_dim),
        ("key_norm", config.has_query_key_norm, head_dim),
        ("post_attention_norm", config.has_sandwich_norms, size),
        ("post_mlp_norm", config.has_sandwich_norms, size),
    ):
        norms[name] = _norm(rng, width) if is_there else None
    numbers |= {name: norm.astype(np.float64) for name, norm in norms.items() if norm is not None}
    return numbers, CpuLayer(**norms, **packed, rotations=rotations)  # type: ignore[arg-type]


def _normed(x: Floats, weight: Floats, epsilon: float) -> Floats:
    normed: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight
    return normed


def _activated(name: str, x: Floats) -> Floats:
    gelu: Floats = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    silu: Floats = x / (1 + np.exp(-x))
    return silu if name == "silu" else gelu
