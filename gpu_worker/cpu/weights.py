"""A model's weights for the fused step: packed matrices, float32 norms, rotations.

Shapes: E hidden size, D head size, M positions, V vocabulary, I intermediate size, H query heads, K kv heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_worker import layer_loading
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight, Packer
from gpu_worker.models import rope
from gpu_worker.stored_model import Projection, StoredModel
from gpu_worker.weight_source import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLayer:
    """One layer. Rows of query and key, and their norms, are ordered so that rotated pairs are neighbours."""

    input_norm: Floats  # [E]
    query_norm: Floats | None  # [D]; Qwen3, Gemma3
    key_norm: Floats | None  # [D]
    post_attention_norm: Floats | None  # [E] of what attention gives, before it is added; Gemma3
    mlp_norm: Floats  # [E] of what the MLP gets
    post_mlp_norm: Floats | None  # [E] of what the MLP gives, before it is added; Gemma3
    query: PackedWeight  # [H * D, E]
    key: PackedWeight  # [K * D, E]
    value: PackedWeight  # [K * D, E]
    output: PackedWeight  # [E, H * D]
    gate: PackedWeight  # [I, E]
    up: PackedWeight  # [I, E]
    down: PackedWeight  # [E, I]
    rotations: Floats  # [M, D / 2, 2] cosine and sine; layers that turn alike share one array


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWeights:
    """The whole model."""

    embedding: PackedWeight  # [V, E]
    head: PackedWeight  # [V, E]; the same object as `embedding` where they are tied
    final_norm: Floats  # [E]
    layers: tuple[CpuLayer, ...]
    num_bytes: int  # of the packed matrices


def load(model: StoredModel, kernels: Library, *, as_stored: bool, max_model_len: int) -> CpuWeights:
    """The whole model: what is quantised as it is stored, or everything in bfloat16.

    Raises MissingWeights or UnreadableWeights.
    """
    loader = _Loader(model, kernels, as_stored=as_stored, rotations=_rotations(model, max_model_len))
    embedding, head = loader.packer.pack(model.embedding), model.head
    packed_head = embedding if head is None else loader.packer.pack(head)
    layers = tuple(layer_loading.in_order(loader.layer, model.config.num_hidden_layers))
    matrices = {id(weight): weight for weight in (embedding, packed_head, *_matrices(layers))}
    return CpuWeights(
        embedding=embedding,
        head=packed_head,
        final_norm=model.final_norm,
        layers=layers,
        num_bytes=sum(weight.tiles.nbytes for weight in matrices.values()),
    )


class _Loader:
    def __init__(self, model: StoredModel, kernels: Library, *, as_stored: bool, rotations: Sequence[Floats]) -> None:
        self.packer = Packer(kernels, as_stored=as_stored)
        self._rounding = Packer(kernels, as_stored=False)
        self._model = model
        self._rotations = rotations

    def layer(self, index: int) -> CpuLayer:
        stored = self._model.layer(index)
        gate, up = self._alike(stored.gate, stored.up)
        return CpuLayer(
            input_norm=stored.input_norm,
            query_norm=stored.query_norm,
            key_norm=stored.key_norm,
            post_attention_norm=stored.post_attention_norm,
            mlp_norm=stored.mlp_norm,
            post_mlp_norm=stored.post_mlp_norm,
            query=_packed(self.packer, stored.query),
            key=_packed(self.packer, stored.key),
            value=_packed(self.packer, stored.value),
            output=_packed(self.packer, stored.output),
            gate=gate,
            up=up,
            down=_packed(self.packer, stored.down),
            rotations=self._rotations[index],
        )

    def _alike(self, first: Projection, second: Projection) -> tuple[PackedWeight, PackedWeight]:
        """Two that are multiplied together need one format; where a file mixes them, that is bfloat16."""
        packed = _packed(self.packer, first), _packed(self.packer, second)
        if packed[0].format == packed[1].format:
            return packed
        return _packed(self._rounding, first), _packed(self._rounding, second)


def _packed(packer: Packer, projection: Projection) -> PackedWeight:
    return packer.pack(projection.matrix, bias=projection.bias, order=projection.order)


def _rotations(model: StoredModel, max_model_len: int) -> list[Floats]:
    divisors = None if (stored := model.frequency_divisors) is None else torch.from_numpy(stored)
    turns = rope.rotations_of_layers(model.config, max_model_len, divisors)
    arrays = {turn: torch.view_as_real(turn).squeeze(1).contiguous().numpy() for turn in turns}
    return [arrays[turn] for turn in turns]


def _matrices(layers: Sequence[CpuLayer]) -> list[PackedWeight]:
    return [
        weight
        for layer in layers
        for weight in (layer.query, layer.key, layer.value, layer.output, layer.gate, layer.up, layer.down)
    ]
