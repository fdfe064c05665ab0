"""Turns a stored model into torch's tensors and packed products, in one type.

Peak memory is the packed model plus the tensors of the layers in hand, one a thread.
"""

from collections.abc import Sequence

import numpy as np
import torch

from gpu_worker import layer_loading
from gpu_worker.linear import Linear, linear
from gpu_worker.models.torch_model import Layer, TorchWeights
from gpu_worker.stored_model import Projection, StoredLayer, StoredModel
from gpu_worker.weight_source import BF16, F16, Floats, StoredMatrix, expanded


def load(model: StoredModel, *, dtype: torch.dtype) -> TorchWeights:
    """The whole model in `dtype`, norms in float32. Raises MissingWeights or UnreadableWeights."""
    loader = _Loader(dtype)
    head, divisors = model.head, model.frequency_divisors
    embedding = _tensor(model.embedding).to(dtype)
    layers = layer_loading.in_order(lambda index: loader.layer(model.layer(index)), model.config.num_hidden_layers)
    return TorchWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=torch.from_numpy(model.final_norm),
        head=loader.packed(embedding if head is None else _tensor(head).to(dtype)),
        frequency_divisors=None if divisors is None else torch.from_numpy(divisors),
        num_bytes=embedding.nbytes + sum(loader.num_bytes),
    )


class _Loader:
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.num_bytes: list[int] = []  # one entry a packed weight; appended by several threads

    def layer(self, stored: StoredLayer) -> Layer:
        return Layer(
            input_norm=torch.from_numpy(stored.input_norm),
            query_norm=_optional(stored.query_norm),
            key_norm=_optional(stored.key_norm),
            qkv=self._fused([stored.query, stored.key, stored.value]),
            output=self._fused([stored.output]),
            post_attention_norm=_optional(stored.post_attention_norm),
            mlp_norm=torch.from_numpy(stored.mlp_norm),
            gate_up=self._fused([stored.gate, stored.up]),
            down=self._fused([stored.down]),
            post_mlp_norm=_optional(stored.post_mlp_norm),
        )

    def packed(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        self.num_bytes.append(weight.nbytes)
        return linear(weight, bias)

    def _fused(self, projections: Sequence[Projection]) -> Linear:
        """Projections of the same input as one product."""
        weights = [self._weight(projection) for projection in projections]
        biases = [projection.bias for projection in projections if projection.bias is not None]
        assert len(biases) in (0, len(projections)), "some of the fused projections have a bias and some have not"
        bias = torch.from_numpy(np.concatenate(biases)).to(self._dtype) if biases else None
        return self.packed(torch.cat(weights) if len(weights) > 1 else weights[0], bias)

    def _weight(self, projection: Projection) -> torch.Tensor:
        """In the order of the outputs."""
        weight = _tensor(projection.matrix).to(self._dtype)
        if projection.order is None:
            return weight
        return torch.empty_like(weight).index_copy_(0, torch.from_numpy(projection.order).long(), weight)


def _tensor(stored: StoredMatrix) -> torch.Tensor:
    """The values in the type that they are stored in, where torch has it; else in float32."""
    if stored.encoding == BF16:
        return torch.from_numpy(stored.data.view(np.uint16).copy()).view(torch.bfloat16)
    if stored.encoding == F16:
        return torch.from_numpy(stored.data.view(np.float16).copy())
    values = expanded(stored)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _optional(values: Floats | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)
