"""What this machine can do at most, measured beside what is compared with it: compiles and calls machine_limits.cpp."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

SOURCES = Path(__file__).resolve().parent.parent / "gpu_worker" / "cpu" / "src"
NUM_ROUNDS = 20_000  # some 0.1 ms: short enough to be left alone in some of the tries
NUM_TRIES = 30


class MachineLimits:
    """Best of many tries, with a number of threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._c = _compiled()
        self._pool = self._c.limits_pool(num_threads)

    def read_bytes_per_s(self, memory: npt.NDArray[np.generic]) -> float:
        """How fast this memory is read in order. What fits a cache and was used is read from there."""
        address, num_bytes = memory.ctypes.data, memory.nbytes
        return num_bytes / min(float(self._c.limits_read(self._pool, address, num_bytes)) for _ in range(5))

    def bf16_per_s(self) -> float:
        """Operations on bfloat16: a product and a sum are two."""
        return max(float(self._c.limits_bf16(self._pool, NUM_ROUNDS)) for _ in range(NUM_TRIES)) * 1e9

    def int8_per_s(self) -> float:
        """Operations on bytes: a product and a sum are two."""
        return max(float(self._c.limits_int8(self._pool, NUM_ROUNDS)) for _ in range(NUM_TRIES)) * 1e9


def _compiled() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="octavo-limits-") as folder:
        library = Path(folder) / "limits.so"
        flags = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-w")
        source = Path(__file__).with_suffix(".cpp")
        command = [os.environ.get("CXX", "g++"), *flags, "-DOCTAVO_ISA=native", f"-I{SOURCES}", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        c = ctypes.CDLL(str(library))
    c.limits_pool.restype = ctypes.c_void_p
    c.limits_pool.argtypes = [ctypes.c_int32]
    c.limits_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    for function in (c.limits_bf16, c.limits_int8):
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    for function in (c.limits_read, c.limits_bf16, c.limits_int8):
        function.restype = ctypes.c_double
    return c
