"""Random matrices in every encoding that files have, of bytes that no quantiser has to make."""

import numpy as np

from gpu_worker.weight_source import Floats, StoredMatrix
from octavo.model_files.gguf_header import BLOCKS

F32, F16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 8, 12, 14, 30
NAMES = {
    F32: "F32",
    F16: "F16",
    Q4_0: "Q4_0",
    Q4_1: "Q4_1",
    Q5_0: "Q5_0",
    Q8_0: "Q8_0",
    Q4_K: "Q4_K",
    Q6_K: "Q6_K",
    BF16: "BF16",
}
_FLOATS = {F32: np.float32, F16: np.float16}
_SCALES = {
    Q4_0: (0,),
    Q4_1: (0, 2),
    Q5_0: (0,),
    Q8_0: (0,),
    Q4_K: (0, 2),
    Q6_K: (208,),
}  # fp16 at these bytes of a block


def random_matrix(encoding: int, rows: int, columns: int, *, seed: int = 0) -> StoredMatrix:
    """Its values are about normal; the data may be written to."""
    random = np.random.default_rng((seed, encoding, rows, columns))
    if encoding in (F32, F16, BF16):
        values = random.standard_normal((rows, columns)).astype(np.float32)
        data = (
            (values.view(np.uint32) >> 16).astype(np.uint16) if encoding == BF16 else values.astype(_FLOATS[encoding])
        )
        return StoredMatrix(encoding=encoding, rows=rows, columns=columns, data=data.view(np.uint8))
    values_per_block, bytes_per_block = BLOCKS[encoding]
    blocks = random.integers(0, 256, (rows, columns // values_per_block, bytes_per_block), dtype=np.uint8)
    for at in _SCALES[encoding]:
        scales = random.uniform(-0.02, 0.02, (rows, blocks.shape[1], 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    return StoredMatrix(encoding=encoding, rows=rows, columns=columns, data=blocks.reshape(rows, -1))


def to_bfloat16(values: Floats) -> Floats:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
