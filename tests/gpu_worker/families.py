"""A small random model of every family that is served, on disk and as transformers runs it.

Each has what tells its family from the others, in sizes that make it felt: windows far shorter than the prompts, soft
caps that bend the scores, norms that are far from one, a K/V head for several query heads.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.gpu_worker.tiny_models import SHAPES, VOCAB_SIZE

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "initializer_range": 0.1,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of transformers, and what this model of the family has beside SIZES."""

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    values: dict[str, Any]


FAMILIES = {
    "llama": Family(LlamaConfig, LlamaForCausalLM, {}),
    "llama3": Family(
        LlamaConfig, LlamaForCausalLM, {"rope_parameters": SHAPES["llama3_rope"]["rope_parameters"], "head_dim": 64}
    ),
    "mistral": Family(MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
    "qwen2": Family(Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2_window": Family(
        Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}
    ),
    "qwen3": Family(Qwen3Config, Qwen3ForCausalLM, {"head_dim": 64, "tie_word_embeddings": True}),
    "gemma2": Family(
        Gemma2Config,
        Gemma2ForCausalLM,
        {"sliding_window": 33, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0,
         "final_logit_softcapping": 3.0, "tie_word_embeddings": False},
    ),
    "gemma3": Family(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {"sliding_window": 32, "query_pre_attn_scalar": 20, "layer_types": ["sliding_attention", "full_attention"] * 2,
         "tie_word_embeddings": False},
    ),
    "gemma3_scaled": Family(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {"sliding_window": 17, "num_hidden_layers": 6, "num_key_value_heads": 1, "final_logit_softcapping": 5.0,
         "rope_parameters": {"full_attention": _LINEAR,
                             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    ),
}  # fmt: skip


def save(folder: Path, name: str, **changes: Any) -> PreTrainedModel:
    """Write a random model of the family, with `changes`, to `folder`; returned as the oracle."""
    family = FAMILIES[name]
    torch.manual_seed(sum(name.encode()))
    config = family.config(**(SIZES | family.values | changes))
    config._attn_implementation = "eager"  # the one that knows soft caps
    model = family.model(config)
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name or parameter_name.endswith("bias"):  # all alike, which would test nothing
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"none": "token ids only"}))
    model.eval()
    return model
