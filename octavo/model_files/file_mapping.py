"""A file in memory, whose bytes are read when they are touched. Knows no format."""

import mmap
from pathlib import Path


def mapped(path: Path) -> mmap.mmap:
    """The whole file, read-only. Raises OSError, or ValueError if it is empty."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
