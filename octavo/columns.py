"""Packed columns: how numbers travel in messages, as uint32 little endian. Knows nothing of what they count."""

import sys
from array import array
from collections.abc import Iterable


class Malformed(Exception):
    """Bytes that are not what their field says; nothing of the message was used."""


def pack(numbers: Iterable[int]) -> bytes:
    """A column of uint32, little endian."""
    column = array("I", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack(name: str, packed: bytes) -> "array[int]":
    """The numbers of the field `name`; raises Malformed if it ends within a number."""
    if len(packed) % 4:
        raise Malformed(f"{name} has {len(packed)} bytes; packed uint32 come in fours")
    numbers = array("I", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
