"""Weights come out of both file formats as transformers has them, and a mismatch is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from gpu_worker.errors import MissingWeights, UnreadableWeights, UnsupportedModel
from gpu_worker.gguf_file import GGUFFile
from gpu_worker.models.config import read_model_config
from gpu_worker.weight_source import expanded
from octavo.model_files import ModelFiles
from tests.gpu_worker import tiny_models
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import Driver, greedy, random_ids


def permuted(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """How llama.cpp's converter stores q and k."""
    return weight.reshape(num_heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, *, rope_divisors: torch.Tensor | None = None) -> None:
    """A GGUF as llama.cpp's converter makes it: Q8_0 and Q4_1 products, F32 norms, and a tokenizer of strings."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}  # fmt: skip
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        tensors["output.weight"] = state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for short, long in names.items():
            weight = state[f"model.layers.{layer}.{long}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(short)
            tensors[f"blk.{layer}.{short}.weight"] = permuted(weight, heads) if heads else weight
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType.F32
        if tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0 if "embd" in name else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_stored(model: Any, path: Path) -> Any:
    """The model with the weights as the GGUF keeps them, read by gguf's own reader and unpermuted by hand."""
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    state = model.state_dict()
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    long_names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
                  "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
                  "ffn_down": "mlp.down_proj"}  # fmt: skip
    state["model.embed_tokens.weight"] = torch.from_numpy(stored["token_embd.weight"].copy())
    if "output.weight" in stored:
        state["lm_head.weight"] = torch.from_numpy(stored["output.weight"].copy())
    for layer in range(model.config.num_hidden_layers):
        for short, long in long_names.items():
            weight = stored[f"blk.{layer}.{short}.weight"]
            if short in heads:
                weight = weight.reshape(heads[short], -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{long}.weight"] = torch.from_numpy(weight.copy())
    model.load_state_dict(state)
    model.tie_weights()
    return model


@pytest.fixture
def gguf_files(gqa_folder: Path, tmp_path: Path) -> tuple[ModelFiles, Any]:
    """A quantised GGUF of the tiny model, and the oracle over the same quantised weights."""
    path, model = tmp_path / "tiny.gguf", tiny_models.load_oracle(gqa_folder)
    write_gguf(path, model)
    files = ModelFiles(
        name="tiny", weights=path, config_dir=gqa_folder, weights_format="gguf", tokenizer_digest=b"t" * 32
    )
    return files, as_stored(model, path)


def test_a_quantised_gguf_gives_the_tokens_of_transformers(gguf_files: tuple[ModelFiles, Any]) -> None:
    files, oracle = gguf_files
    driver, prompt = Driver(tiny_models.ready(files).runner), random_ids(3, 40)
    driver.step({1: 40}, new_request(1, prompt, [1, 2, 3, 4, 5]))
    for _ in range(23):
        driver.step({1: 1})
    assert driver.outputs[1] == greedy(oracle, prompt, 24)


def test_the_header_reader_sees_what_the_full_reader_sees(gguf_files: tuple[ModelFiles, Any]) -> None:
    path = gguf_files[0].weights
    source = GGUFFile(path)
    assert source.has_adjacent_pairs
    full = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    embedding = gguf.quants.dequantize(full["token_embd.weight"].data, full["token_embd.weight"].tensor_type)
    assert (expanded(source.matrix("model.embed_tokens.weight")) == embedding).all()
    assert not source.has("lm_head.weight")


def test_frequency_divisors_of_a_gguf_stand_in_for_the_scaling(tmp_path: Path) -> None:
    model = tiny_models.save_llama(tmp_path / "hf", "llama3_rope")
    config = read_model_config(tmp_path / "hf" / "config.json")
    inverse = model.model.rotary_emb.inv_freq
    plain = 1.0 / (config.rope_theta ** (torch.arange(0, 32, 2).float() / 32))
    write_gguf(tmp_path / "m.gguf", model, rope_divisors=plain / inverse)
    without_scaling = json.loads((tmp_path / "hf" / "config.json").read_text())
    without_scaling["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    (tmp_path / "config.json").write_text(json.dumps(without_scaling))
    files = ModelFiles(
        name="m", weights=tmp_path / "m.gguf", config_dir=tmp_path, weights_format="gguf", tokenizer_digest=b""
    )
    driver, prompt = Driver(tiny_models.ready(files).runner), random_ids(1, 100)
    driver.step({1: 100}, new_request(1, prompt, list(range(1, 9))))
    driver.step({1: 1})
    assert driver.outputs[1] == greedy(as_stored(model, tmp_path / "m.gguf"), prompt, 2)


def test_several_safetensors_files_are_one_model(gqa_folder: Path, gqa_oracle: Any, tmp_path: Path) -> None:
    gqa_oracle.save_pretrained(tmp_path, max_shard_size="500KB")
    shutil.copy(gqa_folder / "tokenizer.json", tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    driver, prompt = Driver(tiny_models.ready(tiny_models.files_of(tmp_path)).runner), random_ids(2, 20)
    driver.step({1: 20}, new_request(1, prompt, [1, 2]))
    assert driver.outputs[1] == greedy(gqa_oracle, prompt, 1)


def changed_config(gqa_folder: Path, tmp_path: Path, **changes: Any) -> ModelFiles:
    for file in gqa_folder.iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tiny_models.files_of(tmp_path)


def test_a_missing_tensor_is_named(gqa_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingWeights, match=r"lack model\.layers\.3\."):
        tiny_models.ready(changed_config(gqa_folder, tmp_path, num_hidden_layers=4))


def test_a_tensor_of_another_shape_is_named(gqa_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingWeights, match=r"embed_tokens\.weight is \(512, 192\), config\.json says \(600, 192\)"):
        tiny_models.ready(changed_config(gqa_folder, tmp_path, vocab_size=600))


def test_a_file_that_was_cut_short_is_told(gqa_folder: Path, tmp_path: Path) -> None:
    files = changed_config(gqa_folder, tmp_path)
    weights = tmp_path / "model.safetensors"
    for num_bytes in (0, 5, 1000, weights.stat().st_size - 1):
        weights.write_bytes((gqa_folder / "model.safetensors").read_bytes()[:num_bytes])
        with pytest.raises(UnreadableWeights, match=r"model\.safetensors cannot be read as safetensors"):
            tiny_models.ready(files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "the architecture is GPT2LMHeadModel; supported are LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "positions are scaled by 'yarn'"),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "tokens see later ones"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 64, "layer_types": ["chunked_attention"] * 3},
            "layers attend by chunked_attention",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4 K/V heads"),
    ],
)
def test_what_is_not_supported_is_said(gqa_folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_model_config(changed_config(gqa_folder, tmp_path, **changes).config_dir / "config.json")


def test_more_positions_than_the_model_has_are_refused(gqa_folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="--max-model-len is 513; the model was made for 512"):
        tiny_models.ready(tiny_models.files_of(gqa_folder), max_model_len=513)
