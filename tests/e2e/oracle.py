"""What Hugging Face transformers generates on the same weights in fp32: the answers that Octavo's must equal.

The demo model's GGUF is dequantised once into a safetensors folder beside the model cache. The oracle takes token
ids, never text, so that tokenizers cannot hide a difference.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoConfig, LlamaForCausalLM

from octavo import model_files

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A greedy continuation and the log probability of each of its tokens."""

    token_ids: list[int]
    logprobs: list[float]


class Oracle:
    """Greedy generation by transformers, fp32, on the weights of the demo model. Answers are remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], int], Expected] = {}

    def expect(self, ids: Sequence[int], num_tokens: int) -> Expected:
        key = (tuple(ids), num_tokens)
        if key not in self._known:
            self._known[key] = _generate(list(ids), num_tokens)
        return self._known[key]


def _generate(ids: list[int], num_tokens: int) -> Expected:
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        made = _model().generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    token_ids: list[int] = made.sequences[0, len(ids) :].tolist()
    rows = torch.cat(made.logits).log_softmax(-1)
    return Expected(token_ids=token_ids, logprobs=rows[range(len(token_ids)), token_ids].tolist())


@cache
def _model() -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(_dequantised(), dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.eval()
    return model


def _dequantised() -> Path:
    """A Hugging Face folder of the demo model in fp32; made once."""
    files = model_files.resolve(None)
    folder = files.config_dir.parent / f"{files.config_dir.name}-fp32-oracle"
    if not (folder / "model.safetensors").exists():
        shutil.copytree(files.config_dir, folder, dirs_exist_ok=True)
        model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
        num_kv_heads = model.config.num_key_value_heads or model.config.num_attention_heads
        state = _state(files.weights, model.config.num_attention_heads, num_kv_heads)
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert set(missing) <= {"lm_head.weight"}, missing
        assert not unexpected, unexpected
        model.tie_weights()
        model.save_pretrained(folder)
    return folder


def _state(weights: Path, num_heads: int, num_kv_heads: int) -> dict[str, torch.Tensor]:
    state = {}
    for tensor in GGUFReader(weights).tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        heads = {"attn_q": num_heads, "attn_k": num_kv_heads}
        match tensor.name.split("."):
            case ["token_embd", "weight"]:
                state["model.embed_tokens.weight"] = value
            case ["output_norm", "weight"]:
                state["model.norm.weight"] = value
            case ["output", "weight"]:
                state["lm_head.weight"] = value
            case ["blk", layer, kind, "weight"]:
                if kind in heads:  # llama.cpp keeps the two halves of each head's rotation interleaved
                    value = value.view(heads[kind], -1, 2, value.shape[-1]).transpose(1, 2).reshape(value.shape)
                state[f"model.layers.{layer}.{_NAMES[kind]}.weight"] = value
    return state
