"""Attention of one layer by the C++ kernels: decode and chunks over a paged K/V memory, beside what the machine allows.

    python -m benchmarks.bench_attention [--num-threads 1 2] [--shape 9,3,64] [--case 8x1024 512+1536] [--isa avx2]

A case is ROWSxCONTEXT (decode) or CHUNK+PREFIX tokens. Layers take turns, as in a model, so that K/V comes from where a
step would find it. "limit" is the longer of reading the K/V once and of the arithmetic at the peak of bfloat16, both
measured beside the kernels. A call from Python costs some microseconds, which a step of the fused model does not:
1x16 is little else. Times are the best of many; compare runs of one machine and one hour only.
"""

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.machine_limits import MachineLimits
from gpu_worker import huge_pages
from gpu_worker.attention.cpu import CpuAttention
from gpu_worker.attention.interface import AttentionShape
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.core.work_list import Heads, plan
from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library

BLOCK_SIZE = 16
CASES = [
    "1x16",
    "1x128",
    "1x1024",
    "1x4096",
    "8x128",
    "8x1024",
    "8x4096",
    "32x128",
    "32x1024",
    "128+0",
    "512+0",
    "512+1536",
]
LAYER_BYTES = 256 << 20  # of all layers of a case; far more than a cache holds, where a layer allows
MAX_LAYERS = 30
SECONDS = 2.0  # of measuring a case


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rows that all have the same length and the same number of new tokens."""

    name: str
    num_rows: int
    num_new: int
    length: int

    def kv_bytes(self, shape: AttentionShape) -> int:
        """What one layer has to read."""
        return self.num_rows * self.num_blocks * BLOCK_SIZE * 4 * shape.num_kv_heads * shape.head_dim

    def operations(self, shape: AttentionShape) -> int:
        """Products and sums of the positions that are seen; a kernel also computes some that are not."""
        seen = sum(range(self.length - self.num_new + 1, self.length + 1))
        return 4 * self.num_rows * seen * shape.num_heads * shape.head_dim

    @property
    def num_blocks(self) -> int:
        return -(-self.length // BLOCK_SIZE)

    def batch(self) -> InputBatch:
        blocks = np.random.default_rng(0).permutation(self.num_rows * self.num_blocks).astype(np.int32)
        tables = blocks.reshape(self.num_rows, self.num_blocks)
        positions = np.tile(np.arange(self.length - self.num_new, self.length), self.num_rows)
        rows = np.repeat(np.arange(self.num_rows), self.num_new)
        return InputBatch(
            token_ids=np.zeros(len(rows), dtype=np.int64),
            positions=positions,
            slot_mapping=tables[rows, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_starts=np.arange(self.num_rows + 1) * self.num_new,
            sequence_lengths=np.full(self.num_rows, self.length),
            block_tables=tables,
            num_decode_rows=self.num_rows if self.num_new == 1 else 0,
            decode_groups=(),
            sampled_slots=np.zeros(0, dtype=np.int64),
            sampled_token_indices=np.zeros(0, dtype=np.int64),
        )


def main() -> None:
    arguments = _arguments()
    kernels = library.opened()
    assert arguments.isa is None or kernels.use_isa(arguments.isa), f"this machine does not run {arguments.isa}"
    one_layer: AttentionShape = arguments.shape
    for num_threads in arguments.num_threads:
        limits = MachineLimits(num_threads)
        peak = limits.bf16_per_s()
        print(f"{kernels.isa}, {num_threads} threads, peak of bfloat16 {peak / 1e9:.0f} GFLOP/s")
        for case in map(_case, arguments.case):
            num_layers = max(2, min(MAX_LAYERS, LAYER_BYTES // case.kv_bytes(one_layer)))
            shape = replace(one_layer, windows=(0,) * num_layers)
            _measure(case, shape, kernels, limits=limits, peak=peak)


def _measure(case: Case, shape: AttentionShape, kernels: Library, *, limits: MachineLimits, peak: float) -> None:
    kv = _memory(case.kv_bytes(shape) * len(shape.windows)).reshape(case.num_rows * case.num_blocks, -1)
    attention = CpuAttention(kernels, kv, shape, block_size=BLOCK_SIZE, num_threads=limits.num_threads)
    batch = case.batch()
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = torch.randn(batch.num_tokens, width).bfloat16()
    run = attention.prepare(batch)
    best, read, deadline = float("inf"), float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        for layer in range(len(shape.windows)):
            run(layer, qkv)
        best = min(best, (time.perf_counter() - started) / len(shape.windows))
        read = min(read, case.kv_bytes(shape) / limits.read_bytes_per_s(kv))
    limit = max(read, case.operations(shape) / peak)
    print(
        f"{case.name:>9}  {best * 1e3:8.4f} ms  limit {limit * 1e3:8.4f} ms ({best / limit:5.2f} x)   "
        f"{case.kv_bytes(shape) / best / 1e9:6.1f} GB/s  {case.operations(shape) / best / 1e9:6.0f} GFLOP/s   "
        f"plan {_plan_us(batch, shape, limits.num_threads):4.0f} us",
        flush=True,
    )


def _plan_us(batch: InputBatch, shape: AttentionShape, num_threads: int) -> float:
    heads = Heads(num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, num_workers=num_threads)
    starts, lengths = batch.query_starts.astype(np.int32), batch.sequence_lengths.astype(np.int32)
    best = float("inf")
    for _ in range(200):
        started = time.perf_counter()
        plan(starts, lengths, heads=heads)
        best = min(best, time.perf_counter() - started)
    return best * 1e6


def _memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Large pages, as the worker's K/V memory has; small values in all of it."""
    values = huge_pages.zeroed(num_bytes).view(np.uint16)
    pattern = torch.randn(1 << 19).bfloat16().view(torch.int16).numpy().view(np.uint16)
    for first in range(0, len(values), len(pattern)):
        values[first : first + len(pattern)] = pattern[: len(values) - first]
    return values.view(np.uint8)


def _case(name: str) -> Case:
    if "x" in name:
        rows, length = map(int, name.split("x"))
        return Case(name=name, num_rows=rows, num_new=1, length=length)
    num_new, prefix = map(int, name.split("+"))
    return Case(name=name, num_rows=1, num_new=num_new, length=prefix + num_new)


def _shape(text: str) -> AttentionShape:
    """Of one layer."""
    heads, kv_heads, head_dim = map(int, text.split(","))
    return AttentionShape(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        soft_cap=None,
        windows=(0,),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shape", type=_shape, default=_shape("9,3,64"), help="query heads, K/V heads, head size")
    parser.add_argument("--case", nargs="+", default=CASES)
    parser.add_argument("--isa", help="avx512, avx2 or generic instead of the best")
    return parser.parse_args()


if __name__ == "__main__":
    main()
