"""The matrices of a model on disk, as they are stored and under Hugging Face's names.

Nothing is read before it is used: files are mapped into memory. `gguf_file` and `safetensors_folder` know the two
formats; what the matrices are for is `stored_model`'s business.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpu_worker.errors import UnreadableWeights
from octavo.model_files.gguf_header import BLOCKS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FREQUENCY_DIVISORS = "rope_freqs.weight"  # only in GGUF files of Llama 3

F32, F16, BF16 = 0, 1, 30  # types of GGUF (ggml), which number the encodings of safetensors here, too


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A matrix as its file has it; a vector is one row. `data` is a view of the mapped file."""

    encoding: int  # the number of a type of GGUF (ggml): 0 F32, 1 F16, 30 BF16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 12 Q4_K, ...
    rows: int
    columns: int
    data: Bytes  # [rows, bytes of a row]


class WeightSource(Protocol):
    """Where matrices come from. Reading may happen in several threads."""

    has_adjacent_pairs: bool  # whether the rows of q and k are already ordered as `models/rope.py` wants them
    has_norm_offset: bool  # whether the weights of norms are whole, though the family's checkpoints leave out an offset

    def has(self, name: str) -> bool: ...

    def matrix(self, name: str) -> StoredMatrix:
        """Raises KeyError when no file has it."""
        ...


def expanded(stored: StoredMatrix) -> Floats:
    """The values [rows, columns]; of F32 a view of the file, which cannot be written to.

    Raises UnreadableWeights if nobody here knows the encoding.
    """
    if stored.encoding == F32:
        return stored.data.view(np.float32)
    if stored.encoding == F16:
        return stored.data.view(np.float16).astype(np.float32)
    if stored.encoding == BF16:
        return (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    from gguf import GGMLQuantizationType, dequantize  # noqa: PLC0415 - a tenth of a second; most files go without

    kind = GGMLQuantizationType(stored.encoding)
    try:
        values: Floats = dequantize(stored.data, kind)
    except NotImplementedError:
        raise UnreadableWeights(f"weights stored as {kind.name} cannot be expanded; supported are Q4 to Q8") from None
    return values


def matrix_in(file: mmap.mmap, offset: int, *, encoding: int, rows: int, columns: int) -> StoredMatrix:
    """The matrix at `offset` of a mapped file.

    Raises ValueError if the file ends before it (using it would kill the process), or its rows are no whole blocks.
    """
    values_per_block, bytes_per_block = BLOCKS[encoding]
    num_blocks, rest = divmod(columns, values_per_block)
    size = rows * num_blocks * bytes_per_block
    if rest or size < 1 or not 0 <= offset <= len(file) - size:
        raise ValueError(f"{size} bytes at {offset} of {len(file)}, {columns} columns in blocks of {values_per_block}")
    data = np.frombuffer(file, dtype=np.uint8, count=size, offset=offset).reshape(rows, num_blocks * bytes_per_block)
    return StoredMatrix(encoding=encoding, rows=rows, columns=columns, data=data)


def weight_files(weights: Path) -> list[Path]:
    """The files that hold the weights: the GGUF file itself, or every *.safetensors of the folder."""
    return sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]
