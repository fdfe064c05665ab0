"""Packed products are right, and a row's result does not depend on how many rows come with it."""

import pytest
import torch

from gpu_worker.linear import is_packed, linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "rows"), [(576, 960), (1536, 576), (192, 70)])
def test_a_row_gives_the_same_bits_in_every_batch(dtype: torch.dtype, columns: int, rows: int) -> None:
    if not is_packed(dtype):
        pytest.skip("this CPU has no packed products of this type")
    torch.manual_seed(0)
    weight, bias = torch.randn(rows, columns).to(dtype), torch.randn(rows).to(dtype)
    x = torch.randn(130, columns).to(dtype)
    apply = linear(weight, bias)
    whole = apply(x)
    for num_rows in (1, 2, 3, 8, 33, 64, 129):
        assert torch.equal(apply(x[:num_rows].contiguous()), whole[:num_rows])
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=0.3)
