"""Batches, K/V memory and back ends for the tests of attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.attention.batched import BatchedAttention
from gpu_worker.attention.cpu import CpuAttention
from gpu_worker.attention.interface import Attention, AttentionShape
from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.cpu.library import Library
from tests.gpu_worker.cpu.kernels import ISAS, kernels_of
from tests.gpu_worker.steps import new_request, step

Row = tuple[int, int, int]  # tokens known, computed before this step, advanced by it


def shape_of(
    heads: int, kv_heads: int, head_dim: int, *, windows: tuple[int, ...] = (0,), soft_cap: float | None = None
) -> AttentionShape:
    return AttentionShape(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=1.3 * head_dim**-0.5,  # as some models have it: not what the head size says
        soft_cap=soft_cap,
        windows=windows,
    )


def batch_of(rows: list[Row], block_size: int, *, shared_blocks: int = 0) -> tuple[InputBatch, int]:
    """Rows over blocks in random order, all with the same first ones; and how many blocks memory needs."""
    num_blocks = sum(-(-known // block_size) for known, _, _ in rows) + 1
    state = BatchState(block_size=block_size, num_blocks=num_blocks, max_model_len=8192, vocab_size=10)
    free = np.random.default_rng(0).permutation(np.arange(1, num_blocks)).tolist()
    shared = [free.pop() for _ in range(shared_blocks)]
    new = [
        new_request(
            handle,
            [1] * known,
            shared + [free.pop() for _ in range(-(-known // block_size) - len(shared))],
            num_computed_tokens=computed,
        )
        for handle, (known, computed, _) in enumerate(rows)
    ]
    counts = {handle: advance for handle, (_, _, advance) in enumerate(rows)}
    return input_batch.plan(state, state.apply(step(1, counts, new_requests=tuple(new)))), num_blocks


def random_memory(num_blocks: int, shape: AttentionShape, block_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Plain K/V memory, as if all blocks had been written before."""
    size = (num_blocks, len(shape.windows), 2, shape.num_kv_heads, block_size, shape.head_dim)
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


def random_qkv(num_tokens: int, shape: AttentionShape, dtype: torch.dtype) -> torch.Tensor:
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return torch.randn(num_tokens, width, generator=torch.Generator().manual_seed(2)).to(dtype)


def tiles_of(plain: torch.Tensor) -> npt.NDArray[np.uint8]:
    """bfloat16 K/V memory in the layout of the kernels, from the plain one [N, L, 2, K, S, D]."""
    num_blocks, num_layers, _, num_kv_heads, block_size, head_dim = plain.shape
    size = (num_blocks, num_layers, num_kv_heads, block_size // 16)
    k, v = plain.view(torch.int16).numpy().transpose(2, 0, 1, 3, 4, 5)
    k_tiles = k.reshape(*size, 16, head_dim // 2, 2).swapaxes(-3, -2).reshape(*size, 1, -1)
    v_tiles = v.reshape(*size, 8, 2, head_dim).swapaxes(-2, -1).reshape(*size, 1, -1)
    return np.concatenate((k_tiles, v_tiles), axis=-2).view(np.uint8).reshape(num_blocks, -1)


@dataclass(frozen=True, slots=True)
class BackEnd:
    """Makes one, and says what it holds afterwards."""

    name: str
    dtype: torch.dtype
    tolerance: float
    kernels: Library | None = None

    def over(self, plain: torch.Tensor, shape: AttentionShape, *, num_threads: int = 2) -> "Opened":
        if self.kernels is None:
            memory = plain.clone()
            return Opened(BatchedAttention(memory, shape), memory)
        tiles = tiles_of(plain)
        block_size = plain.shape[4]
        cpu = CpuAttention(self.kernels, tiles, shape, block_size=block_size, num_threads=num_threads)
        return Opened(cpu, tiles)


@dataclass(frozen=True, slots=True)
class Opened:
    """A back end and its K/V memory."""

    attention: Attention
    memory: torch.Tensor | npt.NDArray[np.uint8]

    def holds(self, plain: torch.Tensor) -> bool:
        if isinstance(self.memory, torch.Tensor):
            return torch.equal(self.memory, plain)
        return np.array_equal(self.memory, tiles_of(plain))


@contextmanager
def back_end_of(name: str) -> Iterator[BackEnd]:
    match name.split():
        case ["torch", "float32"]:
            yield BackEnd(name, torch.float32, 2e-5)
        case ["torch", "bfloat16"]:
            yield BackEnd(name, torch.bfloat16, 3e-2)
        case ["cpu", isa]:
            with kernels_of(isa) as kernels:
                yield BackEnd(name, torch.bfloat16, 2e-2, kernels)
        case _:
            raise AssertionError(name)


BACK_ENDS = ("torch float32", "torch bfloat16", *(f"cpu {isa}" for isa in ISAS))
