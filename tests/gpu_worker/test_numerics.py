"""Which numbers a model is computed in, and by whom, for everything that can be asked."""

import pytest

from gpu_worker.errors import UnsupportedModel
from gpu_worker.numerics import AskedDtype, Circumstances, Numerics, choose

MISFIT = "head_dim is 20, not a multiple of 16"


def there(*, is_quantised: bool = True, refuse: str | None = None, bf16: bool = True) -> Circumstances:
    return Circumstances(is_quantised=is_quantised, kernels_refuse=refuse, multiplies_bf16=bf16)


@pytest.mark.parametrize(
    ("circumstances", "dtype"),
    [
        (there(), "stored"),
        (there(is_quantised=False), "bfloat16"),
        (there(is_quantised=False, bf16=False), "bfloat16"),  # the kernels have a way for every CPU
        (there(refuse=MISFIT), "bfloat16"),
        (there(refuse=MISFIT, bf16=False), "float32"),
    ],
)
def test_auto_takes_the_fastest_that_is_there(circumstances: Circumstances, dtype: str) -> None:
    chosen = choose("auto", circumstances)
    assert chosen.dtype == dtype
    assert chosen.torch_because == circumstances.kernels_refuse


@pytest.mark.parametrize("dtype", ["stored", "bfloat16", "float32"])
def test_what_is_asked_is_what_runs(dtype: AskedDtype) -> None:
    assert choose(dtype, there()).dtype == dtype


def test_float32_is_computed_by_torch_and_says_so() -> None:
    assert choose("float32", there()).torch_because == "float32 was asked for"


def test_bfloat16_falls_to_torch_where_the_kernels_refuse() -> None:
    assert choose("bfloat16", there(refuse=MISFIT)) == Numerics(dtype="bfloat16", torch_because=MISFIT)


@pytest.mark.parametrize(
    ("circumstances", "reason"),
    [(there(refuse=MISFIT), MISFIT), (there(is_quantised=False), "the weights of this model are not quantised")],
)
def test_stored_is_refused_rather_than_replaced(circumstances: Circumstances, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        choose("stored", circumstances)


def test_keys_and_values_are_kept_in_bfloat16_unless_all_is_float32() -> None:
    kept = {dtype: choose(dtype, there()).kv_dtype for dtype in ("stored", "bfloat16", "float32")}
    assert kept == {"stored": "bfloat16", "bfloat16": "bfloat16", "float32": "float32"}
