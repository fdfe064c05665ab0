"""Packing: what is quantised keeps its grid, everything else is rounded to bfloat16 once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import Packer
from gpu_worker.weight_source import expanded
from tests.gpu_worker.cpu.kernels import unpacked
from tests.gpu_worker.cpu.stored_matrices import (
    BF16,
    F16,
    F32,
    NAMES,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q6_K,
    Q8_0,
    random_matrix,
    to_bfloat16,
)


@pytest.fixture(scope="module")
def kernels() -> Library:
    return library.opened()


def named(*encodings: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("encoding", encodings, ids=[NAMES[encoding] for encoding in encodings])


@named(Q4_0, Q4_1, Q5_0, Q8_0)
def test_a_quantised_matrix_keeps_its_values(kernels: Library, encoding: int) -> None:
    stored = random_matrix(encoding, 50, 256)
    weight = Packer(kernels, as_stored=True).pack(stored)
    assert weight.format == (library.Q8 if encoding in (Q5_0, Q8_0) else library.Q4)
    np.testing.assert_allclose(unpacked(kernels, weight), expanded(stored), rtol=1e-6, atol=1e-7)


def test_scales_of_q4_k_are_rounded_to_fp16(kernels: Library) -> None:
    stored = random_matrix(Q4_K, 50, 512)
    weight = Packer(kernels, as_stored=True).pack(stored)
    assert weight.format == library.Q4
    scale, minimum = 0.02 * 63 * 15, 0.02 * 63  # the largest that there are; each is off by half of the last bit
    np.testing.assert_allclose(unpacked(kernels, weight), expanded(stored), rtol=0, atol=(scale + minimum) * 2**-11)


@named(F32, F16, BF16, Q6_K)
def test_what_no_tile_can_hold_is_rounded_to_bfloat16(kernels: Library, encoding: int) -> None:
    stored = random_matrix(encoding, 50, 256)
    weight = Packer(kernels, as_stored=True).pack(stored)
    assert weight.format == library.BF16
    np.testing.assert_array_equal(unpacked(kernels, weight), to_bfloat16(expanded(stored)))


@named(Q4_0, Q4_1, Q5_0, Q8_0, Q4_K)
def test_without_as_stored_everything_becomes_bfloat16(kernels: Library, encoding: int) -> None:
    stored = random_matrix(encoding, 1050, 256)  # more rows than are expanded at once
    weight = Packer(kernels, as_stored=False).pack(stored)
    assert weight.format == library.BF16
    np.testing.assert_array_equal(unpacked(kernels, weight), to_bfloat16(expanded(stored)))


def test_a_minimum_beyond_fp16_makes_the_matrix_bfloat16(kernels: Library) -> None:
    stored = random_matrix(Q4_0, 20, 64)
    stored.data[7, :2] = np.array([9000.0], dtype=np.float16).view(np.uint8)  # values are 9,000 * (-8 to 7)
    weight = Packer(kernels, as_stored=True).pack(stored)
    assert weight.format == library.BF16
    np.testing.assert_array_equal(unpacked(kernels, weight), to_bfloat16(expanded(stored)))


@named(BF16, Q6_K, Q8_0, Q4_1)
def test_rows_go_where_the_order_says(kernels: Library, encoding: int) -> None:
    stored = random_matrix(encoding, 1050, 256)  # no whole tiles, and more rows than are expanded at once
    order = np.random.default_rng(1).permutation(1050).astype(np.int32)
    packer = Packer(kernels, as_stored=True)
    in_order, as_stored = (unpacked(kernels, packer.pack(stored, order=chosen)) for chosen in (order, None))
    np.testing.assert_array_equal(in_order[order], as_stored)


def test_a_bias_is_padded_to_whole_tiles(kernels: Library) -> None:
    weight = Packer(kernels, as_stored=True).pack(random_matrix(F32, 20, 32), bias=np.ones(20, dtype=np.float32))
    assert weight.bias is not None
    assert weight.bias.tolist() == [1.0] * 20 + [0.0] * 12


def test_matrices_share_huge_pages_and_start_at_cache_lines(kernels: Library) -> None:
    packer = Packer(kernels, as_stored=True)
    weights = [packer.pack(random_matrix(Q8_0, 33, 64)) for _ in range(50)]
    starts = [weight.tiles.ctypes.data for weight in weights]
    assert all(start % 64 == 0 for start in starts)
    assert max(starts) - min(starts) < 2 << 20
    assert "hg" in vm_flags(starts[0])  # asked for by madvise


def vm_flags(address: int) -> list[str]:
    """Of the mapping that holds the address (Linux)."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(number, 16) for number in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError(f"no mapping holds {address:#x}")


def test_threads_may_pack_with_one_packer(kernels: Library) -> None:
    packer = Packer(kernels, as_stored=True)
    matrices = [random_matrix(Q8_0, 40, 96, seed=seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as threads:
        weights = list(threads.map(packer.pack, matrices))
    for weight, matrix in zip(weights, matrices, strict=True):
        np.testing.assert_allclose(unpacked(kernels, weight), expanded(matrix), rtol=1e-6, atol=1e-7)
