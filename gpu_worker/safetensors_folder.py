"""Reads a Hugging Face folder: one or several *.safetensors, each a table of contents and then the data."""

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.errors import UnreadableWeights
from gpu_worker.weight_source import BF16, F16, F32, StoredMatrix, matrix_in, weight_files
from octavo.model_files.file_mapping import mapped

_ENCODINGS = {"BF16": BF16, "F16": F16, "F32": F32}
_LENGTH = struct.Struct("<Q")  # of the table of contents, which is JSON


class SafetensorsFolder:
    """All files of a folder as one WeightSource."""

    has_adjacent_pairs = False
    has_norm_offset = False

    def __init__(self, folder: Path) -> None:
        """Raises UnreadableWeights if a file is cut short or is no safetensors."""
        self._file_of = {name: file for path in weight_files(folder) for file in (_File(path),) for name in file.names}

    def has(self, name: str) -> bool:
        return name in self._file_of

    def matrix(self, name: str) -> StoredMatrix:
        """Raises KeyError when no file has it, UnreadableWeights when its type is none that a model runs in."""
        return self._file_of[name].matrix(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What the table of contents says of one matrix."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # from the start of the data
    end: int


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = mapped(path)
            contents, self._start = _contents(self._file)
            self._entries = {name: _entry(name, said) for name, said in contents.items() if name != "__metadata__"}
            self.names = list(self._entries)
            size = max((entry.end for entry in self._entries.values()), default=0)
            if self._start + size != len(self._file):
                raise ValueError(f"it has {len(self._file)} bytes, its contents take {self._start + size}")
        except (ValueError, KeyError, TypeError, RecursionError, struct.error) as broken:
            raise UnreadableWeights(f"{path} cannot be read as safetensors; is it whole? ({broken})") from None

    def matrix(self, name: str) -> StoredMatrix:
        entry = self._entries[name]
        if entry.dtype not in _ENCODINGS:
            raise UnreadableWeights(
                f"{self._path}: {name} is stored as {entry.dtype}; supported are {', '.join(_ENCODINGS)}"
            )
        *rest, columns = entry.shape or (1,)
        encoding = _ENCODINGS[entry.dtype]
        try:
            stored = matrix_in(
                self._file, self._start + entry.begin, encoding=encoding, rows=math.prod(rest), columns=columns
            )
        except ValueError as broken:
            raise UnreadableWeights(f"{self._path}: {name} lies outside of the file ({broken})") from None
        if (size := entry.end - entry.begin) != stored.data.size:
            raise UnreadableWeights(f"{self._path}: {name} has {size} bytes, its shape takes {stored.data.size}")
        return stored


def _contents(file: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The table of contents, and where the data begins."""
    (length,) = _LENGTH.unpack_from(file)
    if length > len(file) - _LENGTH.size:
        raise ValueError(f"its contents alone take {length} bytes, it has {len(file)}")
    entries = json.loads(file[_LENGTH.size : _LENGTH.size + length])
    if not isinstance(entries, dict):
        raise ValueError("its contents are no JSON object")
    return entries, _LENGTH.size + length


def _entry(name: str, said: dict[str, Any]) -> _Entry:
    """Raises ValueError, KeyError or TypeError if it is not what the format wants."""
    begin, end = said["data_offsets"]
    entry = _Entry(dtype=str(said["dtype"]), shape=tuple(said["shape"]), begin=begin, end=end)
    if not all(type(number) is int and number >= 0 for number in (*entry.shape, begin, end)):
        raise ValueError(f"{name} has the shape {entry.shape} and lies at {begin} to {end}")
    return entry
