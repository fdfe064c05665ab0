"""A stored model gives every weight by its role: rotated pairs as neighbours, norms whole, shapes checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.models.config import read_model_config
from gpu_worker.stored_model import Projection, StoredModel, adjacent_order, open_source
from gpu_worker.weight_source import Floats, expanded
from tests.gpu_worker import families, tiny_models


def stored_family(folder: Path, family: str) -> tuple[StoredModel, dict[str, Any]]:
    model = families.save(folder, family)
    config = read_model_config(folder / "config.json")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return StoredModel(open_source(folder, "safetensors"), config), state


def in_order(projection: Projection) -> Floats:
    values = expanded(projection.matrix)
    result = np.empty_like(values)
    result[slice(None) if projection.order is None else projection.order] = values
    return result


def test_pairs_that_lie_half_a_head_apart_become_neighbours() -> None:
    assert adjacent_order(2, 6).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_rows_and_biases_of_q_and_k_are_in_one_order(tmp_path: Path) -> None:
    model, state = stored_family(tmp_path, "qwen2")
    attention, heads = "model.layers.1.self_attn", {"q_proj": 6, "k_proj": 2}
    layer = model.layer(1)
    for name, projection in (("q_proj", layer.query), ("k_proj", layer.key)):
        rows = np.arange(heads[name] * 32).reshape(heads[name], 2, 16).swapaxes(1, 2).reshape(-1)  # what rope reads
        assert (in_order(projection) == state[f"{attention}.{name}.weight"][rows]).all()
        assert projection.bias is not None
        assert (projection.bias == state[f"{attention}.{name}.bias"][rows]).all()
    assert layer.value.order is None
    assert (in_order(layer.value) == state[f"{attention}.v_proj.weight"]).all()
    assert layer.output.bias is None


def test_norms_of_heads_are_in_the_order_of_the_heads_rows(tmp_path: Path) -> None:
    model, state = stored_family(tmp_path, "qwen3")
    pairs = np.arange(64).reshape(2, 32).swapaxes(0, 1).reshape(-1)
    for norm, name in ((model.layer(2).query_norm, "q_norm"), (model.layer(2).key_norm, "k_norm")):
        assert norm is not None
        assert (norm == state[f"model.layers.2.self_attn.{name}.weight"][pairs]).all()


def test_a_sandwich_has_four_norms_and_their_offset(tmp_path: Path) -> None:
    model, state = stored_family(tmp_path, "gemma3")
    layer, prefix = model.layer(0), "model.layers.0"
    for norm, name in (
        (layer.input_norm, "input_layernorm"),
        (layer.post_attention_norm, "post_attention_layernorm"),
        (layer.mlp_norm, "pre_feedforward_layernorm"),
        (layer.post_mlp_norm, "post_feedforward_layernorm"),
    ):
        assert norm is not None
        assert (norm == state[f"{prefix}.{name}.weight"] + np.float32(1)).all()
    assert (model.final_norm == state["model.norm.weight"] + np.float32(1)).all()


def test_without_a_sandwich_the_second_norm_is_the_mlps(tmp_path: Path) -> None:
    model, state = stored_family(tmp_path, "llama")
    layer = model.layer(3)
    assert (layer.mlp_norm == state["model.layers.3.post_attention_layernorm.weight"]).all()
    assert (layer.post_attention_norm, layer.post_mlp_norm, layer.query_norm) == (None, None, None)


@pytest.mark.parametrize(("shape", "is_tied"), [("gqa_tied", True), ("mha_untied", False)])
def test_a_tied_model_has_no_head_of_its_own(tmp_path: Path, shape: str, is_tied: bool) -> None:
    tiny_models.save_llama(tmp_path, shape)
    model = StoredModel(open_source(tmp_path, "safetensors"), read_model_config(tmp_path / "config.json"))
    assert (model.head is None) == is_tied
    assert not model.is_quantised
