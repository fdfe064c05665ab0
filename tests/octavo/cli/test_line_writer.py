"""Outputs that nobody reads: whoever writes is not held up, and does not fail."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from octavo.cli import line_writer


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reading end, and a stream into the other."""
    reading_end, writing_end = os.pipe()
    with os.fdopen(writing_end, "w", encoding="utf-8") as stream:
        yield reading_end, stream


def test_lines_are_written_in_order_and_to_the_last(tmp_path: Path):
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        stream.write("before\n")
        with line_writer.writing(stream) as put:
            assert all(put(f"line {number} é") for number in range(1000))
    expected = ["before", *(f"line {number} é" for number in range(1000))]
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == expected


def test_reader_that_has_gone_costs_lines_only(pipe: tuple[int, TextIO]):
    reading_end, stream = pipe
    os.close(reading_end)
    with line_writer.writing(stream) as put:
        assert put("nobody reads this")
        assert put("nor this")


def test_full_disk_costs_lines_only():
    with open("/dev/full", "w", encoding="utf-8") as stream, line_writer.writing(stream) as put:
        assert put("there is no room for this")


def test_reader_that_stands_still_holds_nobody_up(pipe: tuple[int, TextIO]):
    reading_end, stream = pipe
    began_s = time.monotonic()
    with line_writer.writing(stream, max_waiting=10) as put:
        taken = [put("x" * 10_000) for _ in range(100)]
    assert not taken[-1]
    assert time.monotonic() - began_s < 2 * line_writer.LAST_S
    os.close(reading_end)
