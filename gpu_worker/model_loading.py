"""Loads a model by one of the two ways: for the C++ kernels, or for torch; then the K/V memory, which takes its share
of what the weights left.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker import kv_cache, weights
from gpu_worker.attention.batched import BatchedAttention
from gpu_worker.attention.interface import shape_of
from gpu_worker.config import KVMemory
from gpu_worker.cpu import weights as cpu_weights
from gpu_worker.cpu.fused_model import FusedModel
from gpu_worker.cpu.library import Library
from gpu_worker.kv_cache import KVLayout, KVShape
from gpu_worker.models.interface import Model
from gpu_worker.models.torch_model import TorchModel
from gpu_worker.numerics import Numerics
from gpu_worker.startup_phases import Phases
from gpu_worker.stored_model import StoredModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be loaded, and how."""

    stored: StoredModel
    numerics: Numerics
    kernels: Library | None  # None: torch computes
    memory: KVMemory
    max_model_len: int
    num_threads: int

    @property
    def kv_shape(self) -> KVShape:
        config = self.stored.config
        return kv_cache.shape_of(config, block_size=self.memory.block_size, dtype=self.numerics.kv_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model over its K/V memory."""

    model: Model
    attention: str  # name of the back end
    kv_layout: KVLayout
    num_blocks: int
    kv_cache_bytes: int
    weight_bytes: int


def load(order: Order, phases: Phases) -> LoadedModel:
    """Raises MissingWeights, UnreadableWeights or NotEnoughMemory."""
    return _for_torch(order, phases) if order.kernels is None else _for_kernels(order, order.kernels, phases)


def _for_kernels(order: Order, kernels: Library, phases: Phases) -> LoadedModel:
    config, as_stored = order.stored.config, order.numerics.dtype == "stored"
    torch.set_num_threads(1)  # it only samples; the kernels have threads of their own
    with phases.phase("load_weights"):
        loaded = cpu_weights.load(order.stored, kernels, as_stored=as_stored, max_model_len=order.max_model_len)
    with phases.phase("allocate_kv"):
        kv = _allocated(order)
        model = FusedModel(
            kernels, config, loaded, kv=kv, block_size=order.memory.block_size, num_threads=order.num_threads
        )
    return LoadedModel(
        model=model,
        attention=f"cpu_{kernels.isa}",
        kv_layout=KVLayout.TILES,
        num_blocks=len(kv),
        kv_cache_bytes=kv.nbytes,
        weight_bytes=loaded.num_bytes,
    )


def _for_torch(order: Order, phases: Phases) -> LoadedModel:
    config, shape = order.stored.config, order.kv_shape
    dtype = torch.float32 if order.numerics.dtype == "float32" else torch.bfloat16
    torch.set_num_threads(order.num_threads)
    with phases.phase("load_weights"):
        loaded = weights.load(order.stored, dtype=dtype)
    with phases.phase("allocate_kv"):
        kv = _allocated(order)
        rows = torch.from_numpy(kv).view(dtype)
        heads = (shape.num_kv_heads, shape.block_size, shape.head_dim)
        attention = BatchedAttention(rows.view(len(kv), shape.num_layers, 2, *heads), shape_of(config))
        model = TorchModel(config, loaded, attention, max_model_len=order.max_model_len)
    return LoadedModel(
        model=model,
        attention=attention.name,
        kv_layout=KVLayout.ROWS,
        num_blocks=len(kv),
        kv_cache_bytes=kv.nbytes,
        weight_bytes=loaded.num_bytes,
    )


def _allocated(order: Order) -> npt.NDArray[np.uint8]:
    memory, shape, available = order.memory, order.kv_shape, kv_cache.available_bytes()
    if memory.num_blocks is not None:
        kv_cache.check_num_blocks(shape, memory.num_blocks, available_bytes=available)
        return kv_cache.allocate(shape, memory.num_blocks)
    num_blocks = kv_cache.num_blocks_that_fit(
        shape, available_bytes=available, utilization=memory.memory_utilization, max_model_len=order.max_model_len
    )
    return kv_cache.allocate(shape, num_blocks)
