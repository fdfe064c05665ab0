"""Products with packed weights: right on every instruction set, and a row's bits are its own."""

from collections.abc import Iterator
from ctypes import byref

import numpy as np
import numpy.typing as npt
import pytest

from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import PackedWeight, Packer
from gpu_worker.weight_source import Floats, expanded
from tests.gpu_worker.cpu.kernels import ISAS, kernels_of
from tests.gpu_worker.cpu.stored_matrices import BF16, Q4_1, Q8_0, random_matrix, to_bfloat16

Doubles = npt.NDArray[np.float64]

FORMATS = {"bf16": BF16, "q8": Q8_0, "q4": Q4_1}
MOST_ROWS = 40  # more than any loop keeps in registers, and than memory is read beside
# Whole tiles and not; less than a panel of tiles, and several; the inputs of the demo model's layers.
SHAPES = [(16, 32), (100, 576), (17, 1536), (70, 96)]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    with kernels_of(request.param) as opened:
        yield opened


def product(kernels: Library, weight: PackedWeight, x: Floats, *, num_threads: int = 1) -> Floats:
    """What the kernels say; the row behind the last shows that nothing is written there."""
    y = np.full((len(x) + 1, weight.num_outputs), np.nan, dtype=np.float32)
    pool = kernels.c.octavo_pool_new(num_threads)
    kernels.c.octavo_linear(pool, byref(weight.as_struct()), x.ctypes.data, len(x), y.ctypes.data)
    kernels.c.octavo_pool_free(pool)
    assert np.isnan(y[-1]).all()
    return y[:-1]


def rounded(x: Floats, format: int) -> Doubles:
    """Activations as the format says: bfloat16, or for every 32 inputs int8 with a scale."""
    if format == library.BF16:
        return to_bfloat16(x).astype(np.float64)
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    values: Doubles = np.round(groups / np.where(scale > 0, scale, 1)) * scale.astype(np.float64)
    return values.reshape(x.shape)


def random_rows(num_rows: int, num_inputs: int) -> Floats:
    rows = 3 * np.random.default_rng(num_inputs).standard_normal((num_rows, num_inputs)).astype(np.float32)
    rows[2 % num_rows, :32] = 0  # a group without a scale
    return rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", FORMATS.values(), ids=FORMATS)
def test_products_are_those_of_the_rounded_operands(kernels: Library, encoding: int, shape: tuple[int, int]) -> None:
    stored, x = random_matrix(encoding, *shape), random_rows(MOST_ROWS, shape[1])
    bias = np.arange(shape[0], dtype=np.float32)
    weight = Packer(kernels, as_stored=True).pack(stored, bias=bias)
    values, inputs = expanded(stored).astype(np.float64), rounded(x, weight.format)
    # The operands are the same to the bit, so only float32's sums differ.
    bound = 2e-6 * (np.abs(inputs) @ np.abs(values).T) + 1e-5
    assert (np.abs(product(kernels, weight, x) - (inputs @ values.T + bias)) <= bound).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", FORMATS.values(), ids=FORMATS)
def test_a_row_has_the_same_bits_in_any_number_of_rows_and_threads(
    kernels: Library, encoding: int, shape: tuple[int, int]
) -> None:
    x = random_rows(MOST_ROWS, shape[1])
    weight = Packer(kernels, as_stored=True).pack(random_matrix(encoding, *shape))
    alone = np.concatenate([product(kernels, weight, row[None]) for row in x])
    for num_rows in range(1, MOST_ROWS + 1):
        for num_threads in (1, 2):
            together = product(kernels, weight, x[-num_rows:].copy(), num_threads=num_threads)
            np.testing.assert_array_equal(together.view(np.uint32), alone[-num_rows:].view(np.uint32))


@pytest.mark.parametrize("encoding", [Q8_0, Q4_1])
def test_no_sum_of_bytes_overflows(kernels: Library, encoding: int) -> None:
    stored = random_matrix(encoding, 32, 64)
    scales = 2 if encoding == Q8_0 else 4
    blocks = stored.data.reshape(32, 2, -1)
    blocks[:16, :, scales:] = 0x80 if encoding == Q8_0 else 0xFF  # -128 each, or 15
    blocks[16:, :, scales:] = 0x7F if encoding == Q8_0 else 0xF0
    weight = Packer(kernels, as_stored=True).pack(stored)
    x = np.stack([np.full(64, 5.0), np.full(64, -5.0), np.resize([5.0, -5.0], 64)]).astype(np.float32)
    exact = rounded(x, weight.format) @ expanded(stored).astype(np.float64).T
    np.testing.assert_allclose(product(kernels, weight, x), exact, rtol=1e-5, atol=1e-4)
