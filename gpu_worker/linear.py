"""Matrix times weight: through oneDNN with weights packed once where the CPU build has it, else plain torch.

Packing halves the time of bfloat16 and float32 products at every batch size. It also makes a row's result independent
of the other rows in the batch: bit-equal from 1 to 512 rows in bfloat16 and from 2 in float32, which is why a single
float32 row is computed as two.
"""

from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]

_PACKED_FOR_ROWS = 8  # a hint to oneDNN; the same packing serves every number of rows


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
        result: torch.Tensor
        if is_single_row_odd and x.shape[0] == 1:
            result = multiply(torch.cat((x, x)), packed, bias, "none", [], "")
            return result[:1]
        result = multiply(x, packed, bias, "none", [], "")
        return result

    return apply
