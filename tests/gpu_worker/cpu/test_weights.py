"""What the kernels get is what the file has: exact where its grid is kept, rounded once to bfloat16 elsewhere."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight
from gpu_worker.cpu.weights import CpuWeights, load
from gpu_worker.models.config import ModelConfig, read_model_config
from gpu_worker.stored_model import Projection, StoredLayer, StoredModel, open_source
from gpu_worker.weight_source import BF16, Floats, StoredMatrix, expanded
from tests.gpu_worker import families, tiny_models
from tests.gpu_worker.cpu.kernels import unpacked
from tests.gpu_worker.test_weights import write_gguf

PROJECTIONS = ("query", "key", "value", "output", "gate", "up", "down")
MAX_MODEL_LEN = 40


@pytest.fixture(scope="module")
def kernels() -> Library:
    return library.opened()


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Q4_1 products and a Q8_0 embedding, which is the head, too."""
    folder = tmp_path_factory.mktemp("quantised")
    write_gguf(folder / "m.gguf", tiny_models.save_llama(folder, "gqa_tied"))
    return StoredModel(open_source(folder / "m.gguf", "gguf"), read_model_config(folder / "config.json"))


def values_of(projection: Projection) -> Floats:
    """In the order of the outputs."""
    stored = expanded(projection.matrix)
    values = np.empty_like(stored)
    values[slice(None) if projection.order is None else projection.order] = stored
    return values


def rounded(values: Floats) -> Floats:
    nearest: Floats = torch.tensor(values).bfloat16().float().numpy()
    return nearest


def test_a_quantised_model_keeps_its_grid(kernels: Library, quantised: StoredModel) -> None:
    weights = load(quantised, kernels, as_stored=True, max_model_len=MAX_MODEL_LEN)
    assert (weights.embedding.format, weights.layers[1].down.format) == (library.Q8, library.Q4)
    assert (unpacked(kernels, weights.embedding) == expanded(quantised.embedding)).all()
    for name in PROJECTIONS:
        projection: Projection = getattr(quantised.layer(1), name)
        assert (unpacked(kernels, getattr(weights.layers[1], name)) == values_of(projection)).all(), name


def test_without_stored_everything_is_rounded_once_to_bfloat16(kernels: Library, quantised: StoredModel) -> None:
    weights = load(quantised, kernels, as_stored=False, max_model_len=MAX_MODEL_LEN)
    for name in PROJECTIONS:
        packed: PackedWeight = getattr(weights.layers[2], name)
        projection: Projection = getattr(quantised.layer(2), name)
        assert packed.format == library.BF16
        assert (unpacked(kernels, packed) == rounded(values_of(projection))).all(), name


def test_a_tied_head_is_the_embedding_and_counted_once(kernels: Library, quantised: StoredModel) -> None:
    weights = load(quantised, kernels, as_stored=False, max_model_len=MAX_MODEL_LEN)
    assert weights.head is weights.embedding
    num_weights = 512 * 192 + 3 * (192 * 192 * 2 + 2 * 64 * 192 + 3 * 320 * 192)
    assert weights.num_bytes == 2 * num_weights


def of_family(kernels: Library, folder: Path, family: str) -> tuple[CpuWeights, StoredModel, ModelConfig]:
    families.save(folder, family)
    config = read_model_config(folder / "config.json")
    model = StoredModel(open_source(folder, "safetensors"), config)
    return load(model, kernels, as_stored=False, max_model_len=MAX_MODEL_LEN), model, config


def test_biases_and_rows_of_q_and_k_agree_in_their_order(kernels: Library, tmp_path: Path) -> None:
    weights, model, _ = of_family(kernels, tmp_path, "qwen2")
    stored = model.layer(0).query
    assert weights.layers[0].query.bias is not None
    assert stored.bias is not None
    assert (weights.layers[0].query.bias[: len(stored.bias)] == stored.bias).all()
    assert (unpacked(kernels, weights.layers[0].query) == rounded(values_of(stored))).all()


def test_layers_with_a_window_turn_by_their_own_theta_and_share_the_table(kernels: Library, tmp_path: Path) -> None:
    weights, _, config = of_family(kernels, tmp_path, "gemma3")
    local, everywhere = weights.layers[0].rotations, weights.layers[1].rotations
    assert weights.layers[2].rotations is local
    assert local.shape == (MAX_MODEL_LEN, config.head_dim // 2, 2)
    for table, theta in ((local, config.local_rope_theta), (everywhere, config.rope_theta)):
        assert theta is not None
        angles = np.outer(np.arange(MAX_MODEL_LEN), theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim))
        assert np.abs(table - np.stack((np.cos(angles), np.sin(angles)), -1)).max() < 1e-4
        assert table.flags.c_contiguous


class MixedModel(StoredModel):
    """A file that keeps `up` less exactly than `gate`."""

    def layer(self, index: int) -> StoredLayer:
        stored = super().layer(index)
        values = torch.tensor(expanded(stored.up.matrix)).bfloat16().view(torch.uint8).numpy()
        coarse = StoredMatrix(encoding=BF16, rows=len(values), columns=stored.up.matrix.columns, data=values)
        return replace(stored, up=replace(stored.up, matrix=coarse))


def test_gate_and_up_that_are_stored_differently_are_both_rounded_to_bfloat16(
    kernels: Library, quantised: StoredModel
) -> None:
    model = MixedModel(quantised._source, quantised.config)
    layer = load(model, kernels, as_stored=True, max_model_len=MAX_MODEL_LEN).layers[0]
    assert (layer.gate.format, layer.up.format, layer.down.format) == (library.BF16, library.BF16, library.Q4)
    assert (unpacked(kernels, layer.gate) == rounded(values_of(model.layer(0).gate))).all()
