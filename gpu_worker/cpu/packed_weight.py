"""Matrices in the tiles that the kernels read: in bfloat16, or quantised as their file has them.

Knows encodings and memory; what a matrix is for is the model's business.
"""

import threading
from ctypes import byref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker import huge_pages
from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.weight_source import BF16, F16, F32, Bytes, Floats, StoredMatrix, expanded

INPUTS_MULTIPLE = 32  # the inputs that share a scale
_OUTPUTS_PER_TILE = 16
_Q4_0, _Q4_1, _Q5_0, _Q8_0, _Q4_K = 2, 3, 6, 8, 12  # encodings that keep their grid
_FORMATS = {_Q4_0: library.Q4, _Q4_1: library.Q4, _Q4_K: library.Q4, _Q5_0: library.Q8, _Q8_0: library.Q8}
_PACKED_AS_STORED = (*_FORMATS, F32, F16, BF16)  # others are expanded first
_HUGE_PAGE = 2 << 20
_REGION = 32 << 20  # what is asked of the system at once: a huge page for every small matrix would waste most of it
_EXPANDED_ROWS = 1024  # that are float32 in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A matrix [num_outputs, num_inputs], and what is added to its products."""

    format: int  # library.BF16, Q8 or Q4
    num_outputs: int
    num_inputs: int
    tiles: Bytes
    bias: Floats | None  # [num_outputs padded to whole tiles]

    def as_struct(self) -> library.Weight:
        """What the kernels take. Its pointers are good as long as this object lives."""
        return library.Weight(
            format=self.format,
            num_outputs=self.num_outputs,
            num_inputs=self.num_inputs,
            tiles=self.tiles.ctypes.data,
            bias=None if self.bias is None else self.bias.ctypes.data,
        )


class Packer:
    """Packs the matrices of one model into memory of huge pages. May be used from several threads."""

    def __init__(self, kernels: Library, *, as_stored: bool) -> None:
        """`as_stored` keeps what is quantised on its grid; without it everything becomes bfloat16."""
        self._kernels = kernels
        self._as_stored = as_stored
        self._memory = _Memory()

    def pack(
        self, stored: StoredMatrix, *, bias: Floats | None = None, order: npt.NDArray[np.int32] | None = None
    ) -> PackedWeight:
        """Row i becomes output `order[i]` (None: i), where the bias already is.

        What is stored in a way that no tile can hold is rounded to bfloat16. The inputs must be a multiple of
        INPUTS_MULTIPLE. Raises UnreadableWeights if nobody knows the encoding.
        """
        assert stored.columns % INPUTS_MULTIPLE == 0, f"{stored.columns} inputs are no multiple of {INPUTS_MULTIPLE}"
        format = _FORMATS.get(stored.encoding, library.BF16) if self._as_stored else library.BF16
        outputs = np.arange(stored.rows, dtype=np.int32) if order is None else order
        packed = self._packed(format, stored, outputs=outputs, bias=bias)
        if packed is None:  # a scale beyond the range of fp16
            packed = self._packed(library.BF16, stored, outputs=outputs, bias=bias)
        assert packed is not None, f"encoding {stored.encoding} does not fit bfloat16"
        return packed

    def _packed(
        self, format: int, stored: StoredMatrix, *, outputs: npt.NDArray[np.int32], bias: Floats | None
    ) -> PackedWeight | None:
        size = self._kernels.c.octavo_packed_bytes(format, stored.rows, stored.columns)
        weight = PackedWeight(
            format=format,
            num_outputs=stored.rows,
            num_inputs=stored.columns,
            tiles=self._memory.take(size),
            bias=None if bias is None else _padded(bias),
        )
        return weight if self._fill(weight, stored, outputs=outputs) else None

    def _fill(self, weight: PackedWeight, stored: StoredMatrix, *, outputs: npt.NDArray[np.int32]) -> bool:
        if _FORMATS.get(stored.encoding, library.BF16) == weight.format and stored.encoding in _PACKED_AS_STORED:
            return self._store(weight, stored, outputs=outputs)
        for first in range(0, stored.rows, _EXPANDED_ROWS):
            data = stored.data[first : first + _EXPANDED_ROWS]
            piece = StoredMatrix(encoding=stored.encoding, rows=len(data), columns=stored.columns, data=data)
            values = np.ascontiguousarray(expanded(piece), dtype=np.float32).view(np.uint8)
            floats = StoredMatrix(encoding=F32, rows=len(data), columns=stored.columns, data=values)
            if not self._store(weight, floats, outputs=outputs[first : first + len(data)]):
                return False
        return True

    def _store(self, weight: PackedWeight, piece: StoredMatrix, *, outputs: npt.NDArray[np.int32]) -> bool:
        order = np.ascontiguousarray(outputs, dtype=np.int32)
        data = np.ascontiguousarray(piece.data)
        failed = self._kernels.c.octavo_pack(
            byref(weight.as_struct()), weight.tiles.ctypes.data, piece.encoding, 0, piece.rows, order.ctypes.data,
            data.ctypes.data,
        )  # fmt: skip
        return not failed


def _padded(bias: Floats) -> Floats:
    padded = np.zeros(-(-len(bias) // _OUTPUTS_PER_TILE) * _OUTPUTS_PER_TILE, dtype=np.float32)
    padded[: len(bias)] = bias
    return padded


class _Memory:
    """Zeroed memory in huge pages, given out in pieces that start at cache lines. It is freed with the last piece."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest: Bytes = np.empty(0, dtype=np.uint8)

    def take(self, num_bytes: int) -> Bytes:
        size = -(-num_bytes // 64) * 64
        with self._lock:
            if size > len(self._rest):
                if size > _REGION // 2:
                    return _region(size)[:num_bytes]
                self._rest = _region(_REGION)
            piece, self._rest = self._rest[:num_bytes], self._rest[size:]
            return piece


def _region(num_bytes: int) -> Bytes:
    whole = huge_pages.zeroed(num_bytes + _HUGE_PAGE)
    start = -whole.ctypes.data % _HUGE_PAGE
    return whole[start : start + num_bytes]
