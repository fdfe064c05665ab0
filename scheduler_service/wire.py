"""What all wires share: packed uint32 columns and durations. The messages of each are in `*_wire.py`."""

import sys
from array import array
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration


class Malformed(Exception):
    """Bytes that are not what their field says."""


def pack(numbers: Iterable[int]) -> bytes:
    """A column of uint32, little endian."""
    column = array("I", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack(name: str, packed: bytes) -> "array[int]":
    """A column of uint32, little endian; raises Malformed if it ends within a number."""
    if len(packed) % 4:
        raise Malformed(f"{name} has {len(packed)} bytes; packed uint32 come in fours")
    numbers = array("I", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def duration(nanoseconds: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(max(0, nanoseconds))
    return message
