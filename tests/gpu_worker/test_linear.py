"""Packed products are right, and a row's result does not depend on how many rows come with it."""

import pytest
import torch

from gpu_worker.linear import is_packed, linear, padded_rows


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
    for num_rows in (1, 2, 3, 8, 17, 33, 64, 66, 129):
        assert torch.equal(apply(x[:num_rows].contiguous()), whole[:num_rows])
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=0.3)


def test_few_different_numbers_of_rows_are_computed_and_none_with_much_waste() -> None:
    assert len({padded_rows(num_rows) for num_rows in range(1, 513)}) == 64
    assert all(num_rows <= padded_rows(num_rows) <= num_rows * 9 / 8 for num_rows in range(1, 5000))
    assert [padded_rows(num_rows) for num_rows in (1, 16, 17, 64, 65, 512)] == [1, 16, 18, 64, 72, 512]
