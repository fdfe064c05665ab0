"""What the C++ kernels promise beyond being right: the same bits for a token in every batch, however work is cut."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpu_worker.attention.cpu import CpuAttention
from gpu_worker.attention.interface import AttentionShape
from gpu_worker.core import input_batch, work_list
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.cpu.library import Library
from tests.gpu_worker.attention.back_ends import random_qkv, shape_of, tiles_of
from tests.gpu_worker.cpu.kernels import ISAS, kernels_of
from tests.gpu_worker.steps import new_request, step

NUM_BLOCKS, BLOCK_SIZE = 400, 16
LENGTH = 1100  # two segments and a bit
SHAPES = {
    "full": shape_of(9, 3, 64),
    "window": shape_of(4, 1, 32, windows=(530,)),
    "soft cap": shape_of(2, 2, 48, soft_cap=3.0),
}
NOT_A_NUMBER = 0x7FC0


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    with kernels_of(request.param) as opened:
        yield opened


def memory_of(shape: AttentionShape) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    block = 2 * len(shape.windows) * shape.num_kv_heads * BLOCK_SIZE * shape.head_dim
    return np.full((NUM_BLOCKS, block), NOT_A_NUMBER, dtype=np.uint16).view(np.uint8)


def spans_of(*spans: tuple[int, int, int]) -> InputBatch:
    """Of requests 0 to 3, the tokens from one to before another; a request's blocks are always the same."""
    state = BatchState(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_model_len=4096, vocab_size=10)
    blocks = np.random.default_rng(3).permutation(np.arange(1, NUM_BLOCKS)).reshape(-1)
    new = [
        new_request(request, [1] * end, blocks[request * 90 :][: -(-end // BLOCK_SIZE)].tolist(),
                    num_computed_tokens=first)
        for request, first, end in spans
    ]  # fmt: skip
    counts = {request: end - first for request, first, end in spans}
    return input_batch.plan(state, state.apply(step(1, counts, new_requests=tuple(new))))


Results = dict[tuple[int, int], torch.Tensor]  # by request and position


class Requests:
    """Four requests with fixed q, k and v, computed over one memory in any order."""

    def __init__(self, kernels: Library, shape: AttentionShape, *, num_threads: int = 2) -> None:
        self.memory = memory_of(shape)
        self._cpu = CpuAttention(kernels, self.memory, shape, block_size=BLOCK_SIZE, num_threads=num_threads)
        self._qkv = [random_qkv(LENGTH * 4, shape, torch.bfloat16)[i::4].contiguous() for i in range(4)]

    def attended(self, *spans: tuple[int, int, int]) -> Results:
        batch = spans_of(*spans)
        rows = sorted(spans, key=lambda span: (span[2] - span[1] > 1, -span[2] * (span[2] - span[1] == 1)))
        tokens = [(request, position) for request, first, end in rows for position in range(first, end)]
        qkv = torch.stack([self._qkv[request][position] for request, position in tokens])
        assert batch.positions.tolist() == [position for _, position in tokens]
        return dict(zip(tokens, self._cpu.prepare(batch)(0, qkv), strict=True))


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> AttentionShape:
    return SHAPES[request.param]


def check_equal(given: Results, expected: Results) -> None:
    different = [token for token, values in given.items() if not torch.equal(values, expected[token])]
    assert not different, f"tokens {different[:5]} of {len(given)}"
    assert all(values.isfinite().all() for values in given.values())


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_token_has_the_same_bits_alone_and_in_any_chunk(
    kernels: Library, shape: AttentionShape, num_threads: int
) -> None:
    whole = Requests(kernels, shape, num_threads=1).attended((0, 0, LENGTH))
    in_parts = Requests(kernels, shape, num_threads=num_threads)
    edges = [0, 1, 2, 17, 60, 127, 128, 130, 500, 512, 513, 700, 1023, 1025, LENGTH - 1, LENGTH]
    for first, end in itertools.pairwise(edges):
        check_equal(in_parts.attended((0, first, end)), whole)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_token_has_the_same_bits_in_any_batch(kernels: Library, shape: AttentionShape, num_threads: int) -> None:
    alone, together = (Requests(kernels, shape, num_threads=n) for n in (1, num_threads))
    starts = {0: LENGTH - 1, 1: 300, 2: 40, 3: 700}
    for requests in (alone, together):
        for request, start in starts.items():
            requests.attended((request, 0, start))
    expected: Results = {}
    for span in [(0, LENGTH - 1, LENGTH), (1, 300, 301), (2, 40, 90), (3, 700, 703)]:
        expected |= alone.attended(span)
    given = together.attended((0, LENGTH - 1, LENGTH), (1, 300, 301), (2, 40, 90), (3, 700, 703))
    assert len(given) == 55
    check_equal(given, expected)


def test_an_item_may_have_more_rows_than_are_computed_together(
    kernels: Library, shape: AttentionShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Requests(kernels, shape).attended((0, 0, 700))
    monkeypatch.setattr(work_list, "MIN_ITEM_ROWS", 10_000)
    monkeypatch.setattr(work_list, "MAX_ITEM_ROWS", 10_000)
    requests = Requests(kernels, shape)
    check_equal(requests.attended((0, 0, 300)) | requests.attended((0, 300, 700)), expected)


def test_memory_that_belongs_to_no_token_reaches_no_result(kernels: Library, shape: AttentionShape) -> None:
    """Memory starts as NaN: so do the results if a position too many is read, even with weight 0."""
    requests = Requests(kernels, shape)
    edges = [0, 1, 2, 15, 16, 17, 32, 35]
    for first, end in itertools.pairwise(edges):
        assert all(values.isfinite().all() for values in requests.attended((0, first, end)).values())


def test_a_token_without_a_slot_is_not_stored(kernels: Library) -> None:
    shape = SHAPES["full"]
    requests = Requests(kernels, shape)
    qkv = random_qkv(2, shape, torch.bfloat16)
    requests._cpu._store(0, np.array([-1, 5], dtype=np.int32), qkv)
    plain = torch.full((1, 1, 2, 3, BLOCK_SIZE, 64), torch.nan, dtype=torch.bfloat16)
    plain[0, 0, :, :, 5] = qkv[1, 9 * 64 :].view(2, 3, 64)
    stored = tiles_of(plain)[0].view(np.uint16)
    assert np.array_equal(requests.memory[0].view(np.uint16), stored)
    assert (requests.memory[1:].view(np.uint16) == NOT_A_NUMBER).all()
