"""Matrix times weight: through oneDNN with weights packed once where the CPU build has it, else plain torch.

Packing halves the time of bfloat16 and float32 products at every batch size. It also makes a row's result independent
of the other rows in the batch: bit-equal from 1 to 512 rows in bfloat16 and from 2 in float32, which is why a single
float32 row is computed as two. So rows may be added, too: few different numbers of rows are computed.
"""

from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]

_PACKED_FOR_ROWS = 8  # a hint to oneDNN; the same packing serves every number of rows
# Up to so many rows, multiples of so many are computed.
_ROW_STEPS = ((16, 1), (32, 2), (64, 4), (128, 8))
_LAST_ROW_STEP = 16


def is_packed(dtype: torch.dtype) -> bool:
    """Whether `linear` packs weights of this type on this machine."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """x -> x @ weight.T + bias. The weight may be freed afterwards; x must be contiguous and two-dimensional."""
    if not is_packed(weight.dtype):
        return lambda x: torch.nn.functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)  # noqa: SLF001
    multiply = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
    is_single_row_odd = weight.dtype == torch.float32

    def apply(x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        num_computed = 2 if is_single_row_odd and num_rows == 1 else padded_rows(num_rows)
        if num_computed == num_rows:
            result: torch.Tensor = multiply(x, packed, bias, "none", [], "")
            return result
        padded = x.new_zeros(num_computed, x.shape[1])
        padded[:num_rows] = x
        result = multiply(padded, packed, bias, "none", [], "")
        return result[:num_rows]

    return apply


def padded_rows(num_rows: int) -> int:
    """The number of rows that is computed for `num_rows`: one of 64 up to 512, at most an eighth more.

    oneDNN compiles code for every number of rows that it meets, 1 to 2 MB each, and keeps a thousand such pieces.
    """
    step = next((step for limit, step in _ROW_STEPS if num_rows <= limit), _LAST_ROW_STEP)
    return -(-num_rows // step) * step
