"""Packed columns: little endian uint32, whole numbers only."""

from array import array

import pytest

from octavo.columns import Malformed, pack, unpack

NUMBERS = [1, 256, 4294967295]
PACKED = b"\x01\0\0\0\0\x01\0\0\xff\xff\xff\xff"


def test_numbers_travel_as_little_endian_uint32() -> None:
    assert pack(NUMBERS) == PACKED
    assert unpack("x", PACKED) == array("I", NUMBERS)


def test_packing_leaves_the_numbers_as_they_are() -> None:
    numbers = array("I", NUMBERS)
    assert pack(numbers) == PACKED
    assert numbers.tolist() == NUMBERS


def test_bytes_that_end_within_a_number_are_refused_by_the_name_of_their_field() -> None:
    with pytest.raises(Malformed, match="token_ids has 5 bytes; packed uint32 come in fours"):
        unpack("token_ids", bytes(5))
