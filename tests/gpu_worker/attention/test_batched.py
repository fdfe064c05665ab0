"""The batched back end gives what the plain one gives, for every mix of rows, heads and block sizes."""

import numpy as np
import pytest
import torch

from gpu_worker.attention.batched import TILE_QUERIES, BatchedAttention
from gpu_worker.attention.reference import ReferenceAttention
from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.input_batch import InputBatch
from tests.gpu_worker.steps import new_request, step

NUM_LAYERS = 2
SHAPES = [(9, 3, 64, 16), (4, 4, 32, 8), (8, 1, 128, 32)]
MIXES = {
    "one decode row": [(37, 36, 1)],
    "decode rows of many lengths": [(1, 0, 1), (16, 15, 1), (17, 16, 1), (200, 199, 1), (33, 32, 1), (900, 899, 1)],
    "one chunk from the start": [(70, 0, 70)],
    "a chunk longer than a tile, after a prefix": [(300, 100, TILE_QUERIES * 2 + 5)],
    "everything": [(1, 0, 1), (40, 0, 40), (90, 89, 1), (130, 60, 66), (65, 0, 64), (256, 255, 1), (18, 16, 2)],
}


def batch_of(rows: list[tuple[int, int, int]], block_size: int) -> tuple[InputBatch, int]:
    """Rows of (known, computed, advance) over blocks in random order."""
    num_blocks = sum(-(-known // block_size) for known, _, _ in rows) + 1
    state = BatchState(block_size=block_size, num_blocks=num_blocks, max_model_len=4096, vocab_size=10)
    free = np.random.default_rng(0).permutation(np.arange(1, num_blocks)).tolist()
    new = [
        new_request(handle, [1] * known, [free.pop() for _ in range(-(-known // block_size))], num_computed_tokens=done)
        for handle, (known, done, _) in enumerate(rows)
    ]
    counts = {handle: advance for handle, (_, _, advance) in enumerate(rows)}
    return input_batch.plan(state, state.apply(step(1, counts, new_requests=tuple(new)))), num_blocks


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_batched_equals_reference(
    mix: str, heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    batch, num_blocks = batch_of(MIXES[mix], block_size)
    past = torch.randn(num_blocks, NUM_LAYERS, 2, kv_heads, block_size, head_dim).to(dtype)
    ours, plain = past.clone(), past.clone()
    qkv = torch.randn(batch.num_tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    with torch.inference_mode():
        batched = BatchedAttention(ours, heads).prepare(batch)
        reference = ReferenceAttention(plain, heads).prepare(batch)
        for layer in range(NUM_LAYERS):
            difference = (batched(layer, qkv).float() - reference(layer, qkv).float()).abs().max()
            assert difference < tolerance * 4
            assert torch.equal(ours[:, layer], plain[:, layer])


def span_of(first: int, end: int, *, block_size: int) -> InputBatch:
    """The tokens from `first` to before `end` of one request, whose blocks are always the same."""
    block_ids = list(range(1, 1 + -(-end // block_size)))
    state = BatchState(block_size=block_size, num_blocks=100, max_model_len=4096, vocab_size=10)
    known = new_request(1, [1] * end, block_ids, num_computed_tokens=first)
    return input_batch.plan(state, state.apply(step(1, {1: end - first}, new_requests=(known,))))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), SHAPES)
def test_in_float32_a_token_has_the_same_bits_alone_and_in_any_chunk(
    heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    torch.manual_seed(0)
    num_tokens = TILE_QUERIES * 3 + 5
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * head_dim)
    attention = BatchedAttention(torch.zeros(100, 1, 2, kv_heads, block_size, head_dim), heads)

    def attended(first: int, end: int) -> torch.Tensor:
        return attention.prepare(span_of(first, end, block_size=block_size))(0, qkv[first:end])

    with torch.inference_mode():
        whole = attended(0, num_tokens)
        for first, end in [(0, 1), (15, 16), (63, 64), (64, 65), (num_tokens - 1, num_tokens), (1, 30), (50, 180)]:
            assert torch.equal(attended(first, end), whole[first:end]), f"tokens {first} to {end}"
