"""What a config.json says of its family, in the spelling of new and of old files."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.models.config import ModelConfig, RopeScaling, read_model_config

BASE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
}  # fmt: skip


def read(tmp_path: Path, architecture: str, **values: Any) -> ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE | {"architectures": [f"{architecture}ForCausalLM"]} | values))
    return read_model_config(path)


@pytest.mark.parametrize(
    ("architecture", "values", "windows"),
    [
        ("Llama", {"sliding_window": 99}, (0,) * 8),
        ("Mistral", {"sliding_window": None}, (0,) * 8),
        ("Mistral", {"sliding_window": 99}, (99,) * 8),
        ("Mistral", {}, (4096,) * 8),
        ("Qwen2", {"sliding_window": 99, "use_sliding_window": False, "max_window_layers": 3}, (0,) * 8),
        ("Qwen2", {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 6}, (0,) * 6 + (99,) * 2),
        ("Qwen3", {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 8}, (0,) * 8),
        ("Gemma2", {"sliding_window": 99}, (99, 0) * 4),
        ("Gemma3", {"sliding_window": 99}, (99,) * 5 + (0,) + (99,) * 2),
        ("Gemma3", {"sliding_window": 99, "sliding_window_pattern": 2}, (99, 0) * 4),
        (
            "Gemma3",
            {"sliding_window": 99, "layer_types": ["full_attention", "sliding_attention"] * 4},
            (0, 99) * 4,
        ),
    ],
)
def test_the_window_of_each_layer(
    tmp_path: Path, architecture: str, values: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert read(tmp_path, architecture, **values).windows == windows


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            }
        },
    ],
)
def test_gemma3_turns_the_layers_with_a_window_by_themselves(tmp_path: Path, values: dict[str, Any]) -> None:
    config = read(tmp_path, "Gemma3", **values)
    assert (config.rope_theta, config.local_rope_theta) == (1e6, 2e4)
    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)


def test_what_sets_a_gemma_apart(tmp_path: Path) -> None:
    gemma = read(tmp_path, "Gemma3", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=64)
    assert (gemma.embedding_scale, gemma.attention_scale, gemma.norm_offset) == (8.0, 0.125, 1.0)
    assert (gemma.has_query_key_norm, gemma.has_sandwich_norms, gemma.tie_word_embeddings) == (True, True, True)
    assert gemma.activation == "gelu_tanh"


def test_what_a_llama_lacks(tmp_path: Path) -> None:
    llama = read(tmp_path, "Llama")
    assert (llama.embedding_scale, llama.attention_scale, llama.norm_offset) == (1.0, 0.25, 0.0)
    assert (llama.has_query_key_norm, llama.has_sandwich_norms, llama.tie_word_embeddings) == (False, False, False)
    assert llama.activation == "silu"
    assert (llama.attention_soft_cap, llama.logit_soft_cap, llama.local_rope_theta) == (None, None, None)
