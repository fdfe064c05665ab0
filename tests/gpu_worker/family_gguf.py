"""Writes a model of a family as llama.cpp's converter does: its names, its metadata, its order of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
    quants,
)
from transformers import PreTrainedModel

UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6
ARCHITECTURES = {
    "LlamaForCausalLM": MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": MODEL_ARCH.QWEN3,
    "Gemma2ForCausalLM": MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": MODEL_ARCH.GEMMA3,
}


def write(path: Path, model: PreTrainedModel, *, encoding: GGMLQuantizationType = GGMLQuantizationType.F32) -> None:
    """The whole file, with matrices in `encoding` and a tokenizer of bytes."""
    architecture = ARCHITECTURES[type(model).__name__]
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture])
    _add_shape(writer, model.config)
    if architecture in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3):
        _add_gemma(writer, model.config)
    _add_tokenizer(writer, model.config.vocab_size)
    names = get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():  # a head that is tied to the embedding is not listed
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        values = _as_stored(name, parameter.detach().numpy(), model.config, architecture)
        kind = encoding if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(stored, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_to(encoding: GGMLQuantizationType, model: PreTrainedModel) -> None:
    """Give the model's matrices the values that a file in this encoding has for them."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            rounded = quants.dequantize(quants.quantize(parameter.detach().numpy(), encoding), encoding)
            parameter.data = torch.from_numpy(rounded)


def _as_stored(name: str, values: np.ndarray[Any, Any], config: Any, architecture: MODEL_ARCH) -> np.ndarray[Any, Any]:
    if architecture == MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
        num_heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return values.reshape(num_heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    is_gemma = architecture in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3)
    return values + 1 if is_gemma and "norm" in name else values


def _add_shape(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _add_gemma(writer: GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)


def _add_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    specials = ["<unk>", "<s>", "</s>"]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    num_words = vocab_size - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *(f"word {i}" for i in range(num_words))])
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * num_words)
    writer.add_token_scores([0.0] * vocab_size)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
