"""The shape of a Llama-family model, read from a Hugging Face config.json. Knows no tensors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpu_worker.errors import UnsupportedModel

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond the trained length are squeezed in."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """One model of the family; the names are those of config.json."""

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
    max_position_embeddings: int
    tie_word_embeddings: bool


def read(path: Path) -> LlamaConfig:
    """The model in a config.json. Raises UnsupportedModel, naming what is not supported."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _refuse_others(values, path)
    hidden_size, num_heads = values["hidden_size"], values["num_attention_heads"]
    num_kv_heads = values.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{path}: {num_heads} attention heads cannot share {num_kv_heads} K/V heads evenly")
    theta, scaling = _rope(values, path)
    return LlamaConfig(
        vocab_size=values["vocab_size"],
        hidden_size=hidden_size,
        intermediate_size=values["intermediate_size"],
        num_hidden_layers=values["num_hidden_layers"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=values.get("head_dim") or hidden_size // num_heads,
        rms_norm_eps=values["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=values["max_position_embeddings"],
        tie_word_embeddings=values.get("tie_word_embeddings", False),
    )


def _refuse_others(values: Mapping[str, Any], path: Path) -> None:
    architecture = (values.get("architectures") or ["none named"])[0]
    if architecture not in SUPPORTED:
        raise UnsupportedModel(f"{path}: the architecture is {architecture}; supported are {', '.join(SUPPORTED)}")
    if values.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{path}: hidden_act is {values['hidden_act']!r}; only 'silu' is supported")
    slides = values.get("sliding_window") and values.get("use_sliding_window", architecture.startswith("Mistral"))
    if slides:
        raise UnsupportedModel(f"{path}: attention slides over {values['sliding_window']} tokens; it must be full")
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(f"{path}: the weights are quantised ({method}); use plain safetensors or a GGUF file")


def _rope(values: Mapping[str, Any], path: Path) -> tuple[float, RopeScaling | None]:
    """transformers 5 keeps everything in `rope_parameters`, older files have `rope_theta` and `rope_scaling`."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0)
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
