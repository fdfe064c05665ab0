"""Writes lines to an output from a thread of its own, so that nobody waits for whoever reads them.

A pipe whose reader has gone, a full disk, or a terminal that was stopped costs lines, and never more than that.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

MAX_WAITING: Final = 10_000  # lines that nobody has taken yet; later ones are lost
LAST_S: Final = 1.0  # at the end, for the lines that still wait

PutLine = Callable[[str], bool]  # (a line without its end): false if it is lost because too many wait


@contextmanager
def writing(stream: TextIO, *, max_waiting: int = MAX_WAITING) -> Iterator[PutLine]:
    """Take lines for `stream` while the block runs; they are written in order."""
    stream.flush()
    lines: queue.Queue[bytes | None] = queue.Queue(max_waiting)
    writer = threading.Thread(target=_write, args=(lines, stream.fileno()), name="line-writer", daemon=True)
    writer.start()

    def put(line: str) -> bool:
        return _put(lines, f"{line}\n".encode(stream.encoding, errors="backslashreplace"))

    try:
        yield put
    finally:
        if _put(lines, None):
            writer.join(LAST_S)


def _put(lines: "queue.Queue[bytes | None]", line: bytes | None) -> bool:
    try:
        lines.put_nowait(line)
    except queue.Full:
        return False
    return True


def _write(lines: "queue.Queue[bytes | None]", descriptor: int) -> None:
    """Straight to the descriptor: a stream's lock, held while it blocks, would keep the process from ending."""
    while (rest := lines.get()) is not None:
        with suppress(OSError):
            while rest:
                rest = rest[os.write(descriptor, rest) :]
