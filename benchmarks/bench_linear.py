"""The linear layers of a model by the C++ kernels and by torch's prepacked ones, beside what the machine allows.

    python -m benchmarks.bench_linear [--num-threads 1 2] [--format bf16 q4] [--rows 1 32] [--layers 4] [--isa avx2]

One pass is every layer of a SmolLM2-135M and its head, so that weights come from where a step would find them. "limit"
is the longer of reading the weights once and of the arithmetic at the peak of the format's products, both measured
beside the kernels. torch multiplies in bfloat16 (oneDNN, weights reordered once). Kernels and torch take turns, and a
time is the sum of every matrix's best of many; compare runs of one machine and one hour only. A call from Python costs
some microseconds, which a step of the fused model does not: a pass has 211 of them. The limit is of one whole pass:
other load slows it more than the pieces.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.machine_limits import MachineLimits
from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight, Packer
from gpu_worker.weight_source import Floats, StoredMatrix

# Outputs, inputs: query, key, value, output, gate, up, down.
LAYER = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
HEAD = (49152, 576)
HEAD_ROWS = 64  # with more rows it is left out: a step computes logits of few
ENCODINGS = {"bf16": (30, 64), "q8": (8, 34), "q4": (3, 20)}  # GGUF's number; bytes of 32 weights
ROWS = (1, 2, 4, 8, 16, 32, 128, 512)
SECONDS = 2.0  # of measuring a case

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """The packed matrices of a whole model in one format, and what a pass over them must do."""

    kernels: Library
    weights: Sequence[PackedWeight]

    @property
    def num_layers(self) -> int:
        return len(self.weights) // len(LAYER)  # the head may follow them

    @property
    def num_bytes(self) -> int:
        return sum(weight.tiles.nbytes for weight in self.weights)

    def operations(self, num_rows: int) -> int:
        return 2 * num_rows * sum(weight.num_outputs * weight.num_inputs for weight in self.weights)

    def calls(self, num_rows: int, num_threads: int) -> list[Call]:
        pool = self.kernels.c.octavo_pool_new(num_threads)
        inputs = {n: _rows(num_rows, n) for n in {weight.num_inputs for weight in self.weights}}
        output = np.empty((num_rows, max(weight.num_outputs for weight in self.weights)), dtype=np.float32)

        def call(weight: PackedWeight) -> Call:
            struct, x = byref(weight.as_struct()), inputs[weight.num_inputs]
            return lambda: self.kernels.c.octavo_linear(pool, struct, x.ctypes.data, num_rows, output.ctypes.data)

        return [call(weight) for weight in self.weights]

    def of_rows(self, num_rows: int) -> "Linears":
        return self if num_rows <= HEAD_ROWS else Linears(kernels=self.kernels, weights=self.weights[:-1])


def _rows(num_rows: int, num_inputs: int) -> Floats:
    return np.random.default_rng(0).standard_normal((num_rows, num_inputs)).astype(np.float32)


def _linears(kernels: Library, format: str, num_layers: int) -> Linears:
    packer = Packer(kernels, as_stored=True)
    return Linears(
        kernels=kernels,
        weights=[packer.pack(_stored(format, *shape)) for shape in LAYER * num_layers + [HEAD]],
    )


def _stored(format: str, num_outputs: int, num_inputs: int) -> StoredMatrix:
    """Small weights; what they are changes no time, as long as no sum leaves the range of normal numbers."""
    encoding, bytes_per_group = ENCODINGS[format]
    if format == "bf16":
        values = torch.randn(num_outputs, num_inputs).bfloat16().view(torch.int16).numpy()
        return StoredMatrix(encoding=encoding, rows=num_outputs, columns=num_inputs, data=values.view(np.uint8))
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (num_outputs * num_inputs // 32, bytes_per_group), dtype=np.uint8)
    scales = bytes_per_group % 16  # bytes of fp16 numbers before the weights
    blocks[:, :scales] = np.array([0.01] * (scales // 2), dtype=np.float16).view(np.uint8)
    return StoredMatrix(encoding=encoding, rows=num_outputs, columns=num_inputs, data=blocks.reshape(num_outputs, -1))


def _torch_calls(num_layers: int, num_rows: int) -> list[Call]:
    """The same products by oneDNN, which wants to know the number of rows when it orders the weights."""
    reorder, linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
    inputs = {n: torch.randn(num_rows, n).bfloat16() for _, n in LAYER}

    def call(shape: tuple[int, int]) -> Call:
        weight, x = reorder(torch.randn(shape).bfloat16(), num_rows), inputs[shape[1]]
        return lambda: linear(x, weight, None, "none", [], "")

    return [call(shape) for shape in LAYER * num_layers + [HEAD] * (num_rows <= HEAD_ROWS)]


def _measure(name: str, linears: Linears, num_rows: int, *, limits: MachineLimits, peak: float) -> None:
    kernels, beside = linears.calls(num_rows, limits.num_threads), _torch_calls(linears.num_layers, num_rows)
    memory = np.ones(linears.num_bytes // 8)  # as much as the weights: a part of either may stay in the cache
    best, best_torch, read = np.full(len(kernels), np.inf), np.full(len(kernels), np.inf), 0.0
    deadline = time.perf_counter() + SECONDS
    while time.perf_counter() < deadline:
        best = np.minimum(best, _seconds(kernels))
        read = max(read, limits.read_bytes_per_s(memory))
        best_torch = np.minimum(best_torch, _seconds(beside))
    operations, took = linears.operations(num_rows), best.sum()
    limit = max(linears.num_bytes / read, operations / peak)
    print(
        f"{name:>5} {num_rows:4d} rows  {took * 1e3:8.2f} ms  limit {limit * 1e3:8.2f} ms ({took / limit:5.2f} x)   "
        f"{linears.num_bytes / took / 1e9:5.1f} GB/s {operations / took / 1e9:6.0f} Gop/s   "
        f"torch {best_torch.sum() * 1e3:8.2f} ms ({best_torch.sum() / took:4.2f} x)",
        flush=True,
    )


def _seconds(calls: Sequence[Call]) -> list[float]:
    """Of each call, after a whole pass that is not measured."""
    for call in calls:
        call()
    times = [time.perf_counter()]
    for call in calls:
        call()
        times.append(time.perf_counter())
    return list(np.diff(times))


def main() -> None:
    arguments = _arguments()
    kernels = library.opened()
    assert arguments.isa is None or kernels.use_isa(arguments.isa), f"this machine does not run {arguments.isa}"
    for num_threads in arguments.num_threads:
        torch.set_num_threads(num_threads)
        limits = MachineLimits(num_threads)
        peaks = {"bf16": limits.bf16_per_s(), "q8": limits.int8_per_s(), "q4": limits.int8_per_s()}
        print(
            f"{kernels.isa}, {num_threads} threads, peak of bfloat16 {peaks['bf16'] / 1e9:.0f}, "
            f"of bytes {peaks['q8'] / 1e9:.0f} Gop/s"
        )
        for name in arguments.format:
            linears = _linears(kernels, name, arguments.layers)
            for rows in arguments.rows:
                _measure(name, linears.of_rows(rows), rows, limits=limits, peak=peaks[name])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--format", nargs="+", choices=ENCODINGS, default=list(ENCODINGS))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--isa", help="avx512, avx2 or generic instead of the best")
    return parser.parse_args()


if __name__ == "__main__":
    main()
