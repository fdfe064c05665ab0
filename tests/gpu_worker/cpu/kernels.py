"""The library with the kernels of each instruction set, and what it has packed, for whoever tests it."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref

import numpy as np
import pytest

from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight
from gpu_worker.weight_source import Floats

ISAS = ("avx512", "avx2", "generic")


@contextmanager
def kernels_of(isa: str) -> Iterator[Library]:
    """The kernels of one instruction set; skips the test where this machine does not run them."""
    opened = library.opened()
    best = opened.isa
    if not opened.use_isa(isa):
        pytest.skip(f"this machine does not run {isa}")
    yield opened
    opened.use_isa(best)


def unpacked(kernels: Library, weight: PackedWeight) -> Floats:
    values = np.empty((weight.num_outputs, weight.num_inputs), dtype=np.float32)
    for row in range(weight.num_outputs):
        kernels.c.octavo_unpack_row(byref(weight.as_struct()), row, values[row].ctypes.data)
    return values
