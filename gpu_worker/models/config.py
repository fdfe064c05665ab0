"""The shape of a model of any family served here, read from a Hugging Face config.json. Knows no tensors.

The families differ in a dozen values, not in code: only this file knows them by name.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpu_worker.errors import UnsupportedModel

SUPPORTED = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
)

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_GEMMA3_WINDOW_PATTERN = 6  # every sixth layer sees everything, unless the file says otherwise
_THETA = 10000.0  # where a file names none, as transformers has it
_WINDOW = 4096  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond the trained length are squeezed in."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model; names that config.json has, too, mean the same."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    local_rope_theta: float | None  # of the layers with a window, unscaled; None: as all others
    windows: tuple[int, ...]  # a layer: a token sees itself and window - 1 before it; 0: all before it
    activation: Literal["silu", "gelu_tanh"]
    has_query_key_norm: bool  # RMS norm of every head of q and k, before it is rotated
    has_sandwich_norms: bool  # what attention and the MLP give is normed before it is added
    norm_offset: float  # what safetensors leave out of the weights of norms; added when they are loaded
    embedding_scale: float
    attention_scale: float
    attention_soft_cap: float | None  # a score x becomes cap * tanh(x / cap)
    logit_soft_cap: float | None
    max_position_embeddings: int
    tie_word_embeddings: bool


def read_model_config(path: Path) -> ModelConfig:
    """The model in a config.json. Raises UnsupportedModel, naming what is not supported."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    architecture = _architecture(values, path)
    is_gemma = architecture.startswith("Gemma")
    hidden_size, num_heads = values["hidden_size"], values["num_attention_heads"]
    num_kv_heads = values.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{path}: {num_heads} attention heads cannot share {num_kv_heads} K/V heads evenly")
    head_dim = values.get("head_dim") or hidden_size // num_heads
    theta, scaling = _rope(values, path)
    return ModelConfig(
        vocab_size=values["vocab_size"],
        hidden_size=hidden_size,
        intermediate_size=values["intermediate_size"],
        num_hidden_layers=values["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=values["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        local_rope_theta=_local_rope_theta(values, path) if architecture == "Gemma3ForCausalLM" else None,
        windows=_windows(values, architecture, path),
        activation=_activation(values, path),
        has_query_key_norm=architecture in ("Qwen3ForCausalLM", "Gemma3ForCausalLM"),
        has_sandwich_norms=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if is_gemma else 1.0,
        attention_scale=(values.get("query_pre_attn_scalar") or head_dim) ** -0.5 if is_gemma else head_dim**-0.5,
        attention_soft_cap=values.get("attn_logit_softcapping") if is_gemma else None,
        logit_soft_cap=values.get("final_logit_softcapping") if is_gemma else None,
        max_position_embeddings=values["max_position_embeddings"],
        tie_word_embeddings=values.get("tie_word_embeddings", is_gemma),
    )


def _architecture(values: Mapping[str, Any], path: Path) -> str:
    """The class of transformers that would run the model; refuses what this worker would compute wrongly."""
    architecture = str((values.get("architectures") or ["none named"])[0])
    if architecture not in SUPPORTED:
        raise UnsupportedModel(f"{path}: the architecture is {architecture}; supported are {', '.join(SUPPORTED)}")
    if values.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{path}: tokens see later ones (use_bidirectional_attention); only causal attention is")
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(f"{path}: the weights are quantised ({method}); use plain safetensors or a GGUF file")
    return architecture


def _activation(values: Mapping[str, Any], path: Path) -> Literal["silu", "gelu_tanh"]:
    name = values.get("hidden_activation") or values.get("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{path}: hidden_act is {name!r}; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _windows(values: Mapping[str, Any], architecture: str, path: Path) -> tuple[int, ...]:
    """The window of each layer: what `layer_types` says, else the rule of the family."""
    num_layers: int = values["num_hidden_layers"]
    window: int | None = values.get("sliding_window", _WINDOW)
    is_off = architecture.startswith("Qwen") and not values.get("use_sliding_window")
    if not window or is_off or architecture == "LlamaForCausalLM":
        return (0,) * num_layers
    kinds = values.get("layer_types") or [_kind(layer, architecture, values) for layer in range(num_layers)]
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{path}: layers attend by {', '.join(sorted(unknown))}; it must be full or sliding")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _kind(layer: int, architecture: str, values: Mapping[str, Any]) -> str:
    match architecture:
        case "Qwen2ForCausalLM" | "Qwen3ForCausalLM":
            slides = layer >= values["max_window_layers"]
        case "Gemma2ForCausalLM":
            slides = layer % 2 == 0
        case "Gemma3ForCausalLM":
            slides = (layer + 1) % values.get("sliding_window_pattern", _GEMMA3_WINDOW_PATTERN) != 0
        case _:
            slides = True
    return "sliding_attention" if slides else "full_attention"


def _rope(values: Mapping[str, Any], path: Path) -> tuple[float, RopeScaling | None]:
    """Of the layers that see everything.

    transformers 5 keeps all in `rope_parameters` (for Gemma3 one by kind of layer), older files have `rope_theta` and
    `rope_scaling`.
    """
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    theta = float(rope.get("rope_theta") or values.get("rope_theta") or _THETA)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{path}: only a part of each head is rotated; it must be all")
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            return theta, None
        case "linear":
            return theta, RopeScaling(kind="linear", factor=rope["factor"])
        case "llama3":
            return theta, RopeScaling(
                kind="llama3",
                factor=rope["factor"],
                low_freq_factor=rope["low_freq_factor"],
                high_freq_factor=rope["high_freq_factor"],
                original_max_position_embeddings=rope["original_max_position_embeddings"],
            )
        case other:
            raise UnsupportedModel(f"{path}: positions are scaled by {other!r}; supported are default, linear, llama3")


def _local_rope_theta(values: Mapping[str, Any], path: Path) -> float:
    """Of Gemma3's layers with a window."""
    rope = (values.get("rope_parameters") or {}).get("sliding_attention", {})
    if (kind := rope.get("rope_type", "default")) != "default":
        raise UnsupportedModel(f"{path}: positions of layers with a window are scaled by {kind!r}; they must not be")
    return float(rope.get("rope_theta") or values.get("rope_local_base_freq") or _THETA)
