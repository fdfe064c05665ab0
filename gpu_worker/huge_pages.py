"""Memory that is read in long streams: in large pages where the system has them. Knows nothing of what is in it."""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt


def zeroed(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, aligned to small pages, that take memory as they are written; freed with the last array over them."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages gives small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)  # keeps `memory` alive
