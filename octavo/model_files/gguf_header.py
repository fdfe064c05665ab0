"""Reads what stands before the data of a GGUF file: its metadata, and where its tensors lie.

Knows the file format; what keys and names mean is its users' business. Far quicker than the `gguf` package, which
makes several arrays of every word of a vocabulary.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of the data, unless `general.alignment` says otherwise

# Types of tensors (ggml): values in a block, bytes of a block.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8),  # F32, F16, BF16, F64
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),  # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),  # Q2_K to Q8_K
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),  # IQ
    23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),  # IQ4_XS, IQ1_M, TQ1_0, TQ2_0, MXFP4
}  # fmt: skip

# Types of values: how `struct` calls them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Scalar = int | float | bool | str
Value = Scalar | Sequence[Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor of the file, all of which is there."""

    encoding: int  # the number of its type, one of BLOCKS
    shape: tuple[int, ...]  # innermost first
    offset: int  # from the start of the file


class GGUFHeader:
    """`fields` are the key-value pairs, `tensors` the places by name."""

    fields: dict[str, Value]
    tensors: dict[str, TensorPlace]

    def __init__(self, file: mmap.mmap, *, with_lists_of_texts: bool = True) -> None:
        """A tokenizer's lists of texts take most of the time; without them they are empty.

        Raises ValueError or struct.error if the header is broken, or the file ends before its tensors do.
        """
        self._file = file
        self._with_lists_of_texts = with_lists_of_texts
        self._offset = len(MAGIC)
        version, num_tensors, num_pairs = self._take("IQQ")
        if file[: len(MAGIC)] != MAGIC or version not in VERSIONS:
            raise ValueError(f"it begins with {file[:4]!r} and version {version}; expected are GGUF and 2 or 3")
        self.fields = {self._string(): self._value(*self._take("I")) for _ in range(num_pairs)}
        entries = list(self._entries(num_tensors))
        alignment = self.fields.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._offset // alignment) * alignment
        self.tensors = {
            name: TensorPlace(encoding=place.encoding, shape=place.shape, offset=start + place.offset)
            for name, place in entries
        }
        for name, place in self.tensors.items():
            if (end := place.offset + num_bytes(place)) > len(file):
                raise ValueError(f"{name} ends at {end}, the file at {len(file)}")

    def _entries(self, num_tensors: int) -> Iterator[tuple[str, TensorPlace]]:
        """With offsets from the start of the data, which is not known yet."""
        for _ in range(num_tensors):
            name, (num_dimensions,) = self._string(), self._take("I")
            shape = self._take(f"{num_dimensions}Q")
            encoding, offset = self._take("IQ")
            yield name, TensorPlace(encoding=encoding, shape=shape, offset=offset)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            (value,) = self._take(_scalar(kind))
            return value
        item_kind, count = self._take("IQ")
        if item_kind != _STRING:
            return self._take(f"{count}{_scalar(item_kind)}")
        return self._strings(count) if self._with_lists_of_texts else self._no_strings(count)

    def _take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{layout}", self._file, self._offset)
        self._offset += struct.calcsize(f"<{layout}")
        return values

    def _string(self) -> str:
        (text,) = self._strings(1)
        return text

    def _strings(self, count: int) -> list[str]:
        file, offset, size_at = self._file, self._offset, struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            end = offset + 8 + size_at(file, offset)[0]
            if end > len(file):
                raise ValueError("a text goes on beyond the end of the file")
            texts.append(file[offset + 8 : end].decode())
            offset = end
        self._offset = offset
        return texts

    def _no_strings(self, count: int) -> list[str]:
        file, offset, size_at = self._file, self._offset, struct.Struct("<Q").unpack_from
        for _ in range(count):
            offset += 8 + size_at(file, offset)[0]
            if offset > len(file):
                raise ValueError("a text goes on beyond the end of the file")
        self._offset = offset
        return []


def num_bytes(place: TensorPlace) -> int:
    """Raises ValueError for an unknown type, a tensor of nothing, or rows that are no whole blocks."""
    if place.encoding not in BLOCKS:
        raise ValueError(f"there is no type of tensor {place.encoding}")
    if not place.shape or 0 in place.shape:
        raise ValueError(f"a tensor has the shape {place.shape}")
    values, size = BLOCKS[place.encoding]
    if place.shape[0] % values:
        raise ValueError(f"rows of {place.shape[0]} values do not fit in blocks of {values}")
    return math.prod(place.shape) // values * size


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"there is no type of value {kind}")
    return _SCALARS[kind]
