"""The K/V memory: how many blocks fit, and the bytes that hold them.

A block is one contiguous piece over all layers, so a new request touches few pages, and a block can be copied elsewhere
at once. Knows bytes, not requests; which block holds what is the KV cache service's business.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]

from gpu_worker import huge_pages
from gpu_worker.errors import NotEnoughMemory
from gpu_worker.models.config import ModelConfig

KVDtype = Literal["bfloat16", "float32"]

_ELEMENT_BYTES: dict[KVDtype, int] = {"bfloat16": 2, "float32": 4}
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 2**30


class KVLayout(StrEnum):
    """How the bytes of a block are ordered; in each, the pairs of a rotation are neighbours."""

    ROWS = "nl2hsd.adjacent"  # [blocks, layers, 2, kv heads, block size, head size], of torch
    TILES = "nlhs16tiles.adjacent"  # tiles of 16 tokens, of the C++ kernels: cpu/src/octavo_cpu.h


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The size of one block, of a model in a type."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: KVDtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.block_size * self.head_dim * _ELEMENT_BYTES[self.dtype]


def shape_of(config: ModelConfig, *, block_size: int, dtype: KVDtype) -> KVShape:
    return KVShape(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        block_size=block_size,
        head_dim=config.head_dim,
        dtype=dtype,
    )


def num_blocks_that_fit(shape: KVShape, *, available_bytes: int, utilization: float, max_model_len: int) -> int:
    """Blocks, the null block included, in `utilization` of the available memory.

    Raises NotEnoughMemory unless one sequence of max_model_len fits.
    """
    budget = int(available_bytes * utilization)
    num_blocks = budget // shape.block_bytes
    needed = -(-max_model_len // shape.block_size) + 1
    if num_blocks < needed:
        largest = max(0, num_blocks - 1) * shape.block_size
        raise NotEnoughMemory(
            f"K/V of one sequence of max_model_len {max_model_len} needs {_gib(needed * shape.block_bytes)}; "
            f"memory_utilization {utilization} of the {_gib(available_bytes)} available after loading is "
            f"{_gib(budget)}. The largest max_model_len that fits is {largest}: lower --max-model-len, raise "
            "--memory-utilization, or free memory"
        )
    return num_blocks


def check_num_blocks(shape: KVShape, num_blocks: int, *, available_bytes: int) -> None:
    """Raises NotEnoughMemory if a pool of a stated size is more than what is available."""
    needed = num_blocks * shape.block_bytes
    if needed > available_bytes:
        raise NotEnoughMemory(
            f"--num-blocks {num_blocks} needs {_gib(needed)}; {_gib(available_bytes)} are available after loading. "
            f"At most {available_bytes // shape.block_bytes} blocks fit: lower --num-blocks, or free memory"
        )


def allocate(shape: KVShape, num_blocks: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory [blocks, bytes of a block], aligned to pages, which the system gives out as they are written."""
    return huge_pages.zeroed(num_blocks * shape.block_bytes).reshape(num_blocks, shape.block_bytes)


def available_bytes() -> int:
    """Memory that this process may still take: of the machine, and of its container if that has a limit."""
    available: int = psutil.virtual_memory().available
    for limit, usage in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        if limit.is_file() and usage.is_file() and (text := limit.read_text().strip()) != "max":
            available = min(available, max(0, int(text) - int(usage.read_text())))
    return available


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
