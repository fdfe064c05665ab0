"""Attention by the C++ kernels, over K/V memory in their layout (bfloat16, tiles; see cpu/src/kv_memory.h).

For a model whose other layers run in torch; `cpu/fused_model.py` calls the same kernels from within its step.
"""

from ctypes import byref

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.attention.interface import AttentionShape, StepAttention
from gpu_worker.core import work_list
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.core.work_list import Heads, Integers
from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library


class CpuAttention:
    """Kernels, their threads, and the K/V memory [blocks, bytes of a block]."""

    name = "cpu"

    def __init__(
        self,
        kernels: Library,
        kv: npt.NDArray[np.uint8],
        shape: AttentionShape,
        *,
        block_size: int,
        num_threads: int,
    ) -> None:
        assert shape.head_dim % 16 == 0, f"head_dim {shape.head_dim} is not a multiple of 16"
        assert block_size % 16 == 0, f"block_size {block_size} is not a multiple of 16"
        self._kernels = kernels
        self._kv = kv
        self._shape = shape
        self._heads = Heads(num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, num_workers=num_threads)
        self._c_shape = library.AttentionShape(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=block_size,
            num_layers=len(shape.windows),
            scale=shape.scale,
            soft_cap=shape.soft_cap or 0.0,
        )
        self._pool = kernels.c.octavo_pool_new(num_threads)

    def __del__(self) -> None:
        if pool := getattr(self, "_pool", None):
            self._kernels.c.octavo_pool_free(pool)

    def prepare(self, batch: InputBatch) -> StepAttention:
        """Plans the step once for every window that the model has."""
        slots = _int32(batch.slot_mapping)
        tables = _int32(batch.block_tables)
        starts, lengths = _int32(batch.query_starts), _int32(batch.sequence_lengths)
        plans = {
            window: work_list.plan(starts, lengths, heads=self._heads, window=window)
            for window in set(self._shape.windows)
        }
        works = {window: library.WorkList.of(plan) for window, plan in plans.items()}
        width = self._shape.num_heads * self._shape.head_dim

        def run(layer: int, qkv: torch.Tensor, _kept: object = plans) -> torch.Tensor:
            self._store(layer, slots, qkv)
            out = torch.empty(len(qkv), width, dtype=torch.bfloat16)
            self._kernels.c.octavo_attend(
                self._pool, byref(self._c_shape), self._kv.ctypes.data, layer, byref(works[self._shape.windows[layer]]),
                tables.ctypes.data, tables.shape[1], qkv.data_ptr(), qkv.stride(0), out.data_ptr(),
            )  # fmt: skip
            return out

        return run

    def _store(self, layer: int, slots: Integers, qkv: torch.Tensor) -> None:
        assert qkv.dtype == torch.bfloat16, f"the kernels take bfloat16, not {qkv.dtype}"
        k = qkv.data_ptr() + 2 * self._shape.num_heads * self._shape.head_dim
        v = k + 2 * self._shape.num_kv_heads * self._shape.head_dim
        self._kernels.c.octavo_write_kv(
            byref(self._c_shape), self._kv.ctypes.data, layer, len(qkv), slots.ctypes.data, k, v, qkv.stride(0)
        )


def _int32(values: npt.NDArray[np.integer]) -> Integers:
    return np.ascontiguousarray(values, dtype=np.int32)
