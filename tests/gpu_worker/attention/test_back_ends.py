"""Every back end gives what the reference gives and stores what it stores: mixes of rows, heads, blocks, windows."""

from collections.abc import Iterator

import pytest
import torch

from gpu_worker.attention.batched import TILE_QUERIES
from gpu_worker.attention.reference import ReferenceAttention
from tests.gpu_worker.attention import back_ends
from tests.gpu_worker.attention.back_ends import BackEnd, Row, batch_of, random_memory, random_qkv, shape_of

WINDOWS = (0, 1, 70, 600)  # of the layers

# Query heads, K/V heads, head size, block size, soft cap.
SHAPES = {
    "groups of 3": (9, 3, 64, 16, None),
    "no groups": (4, 4, 32, 32, None),
    "one K/V head for 8": (8, 1, 128, 64, None),
    "groups of 4": (8, 2, 96, 16, None),
    "large heads, groups of 2": (4, 2, 256, 32, None),
    "odd head size": (2, 1, 80, 16, None),
    "one K/V head for 20": (20, 1, 32, 16, None),
    "soft cap": (4, 2, 64, 16, 2.0),
}
MIXES: dict[str, list[Row]] = {
    "one decode row": [(37, 36, 1)],
    "the first token": [(1, 0, 1)],
    "one long decode row": [(1300, 1299, 1)],
    "decode rows of many lengths": [(1, 0, 1), (16, 15, 1), (17, 16, 1), (200, 199, 1), (33, 32, 1), (900, 899, 1)],
    "one chunk from the start": [(70, 0, 70)],
    "a chunk longer than a tile, after a prefix": [(300, 100, TILE_QUERIES * 2 + 5)],
    "a few tokens after a long prefix": [(1200, 1190, 10)],
    "everything": [(1, 0, 1), (40, 0, 40), (90, 89, 1), (130, 60, 66), (65, 0, 64), (700, 699, 1), (18, 16, 2)],
}


@pytest.fixture(params=back_ends.BACK_ENDS)
def back_end(request: pytest.FixtureRequest) -> Iterator[BackEnd]:
    with back_ends.back_end_of(request.param) as made:
        yield made


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gives_and_stores_what_the_reference_does(back_end: BackEnd, shape: str, mix: str) -> None:
    heads, kv_heads, head_dim, block_size, soft_cap = SHAPES[shape]
    about = shape_of(heads, kv_heads, head_dim, windows=WINDOWS, soft_cap=soft_cap)
    batch, num_blocks = batch_of(MIXES[mix], block_size)
    plain = random_memory(num_blocks, about, block_size, back_end.dtype)
    opened = back_end.over(plain, about)
    qkv = random_qkv(batch.num_tokens, about, back_end.dtype)
    with torch.inference_mode():
        given, expected = opened.attention.prepare(batch), ReferenceAttention(plain, about).prepare(batch)
        for layer in range(len(WINDOWS)):
            difference = (given(layer, qkv).float() - expected(layer, qkv).float()).abs().max()
            assert difference < back_end.tolerance, f"window {WINDOWS[layer]}"
    assert opened.holds(plain)


def test_rows_may_share_blocks(back_end: BackEnd) -> None:
    about = shape_of(9, 3, 64)
    batch, num_blocks = batch_of([(100, 99, 1), (80, 70, 10), (65, 64, 1)], 16, shared_blocks=4)
    plain = random_memory(num_blocks, about, 16, back_end.dtype)
    opened = back_end.over(plain, about)
    qkv = random_qkv(batch.num_tokens, about, back_end.dtype)
    with torch.inference_mode():
        given = opened.attention.prepare(batch)(0, qkv)
        expected = ReferenceAttention(plain, about).prepare(batch)(0, qkv)
    assert (given.float() - expected.float()).abs().max() < back_end.tolerance
