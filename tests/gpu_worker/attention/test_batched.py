"""What the torch back end promises beyond being right: in float32, the same bits for a token alone and in any chunk."""

import pytest
import torch

from gpu_worker.attention.batched import TILE_QUERIES, BatchedAttention
from gpu_worker.core import input_batch
from gpu_worker.core.batch_state import BatchState
from gpu_worker.core.input_batch import InputBatch
from tests.gpu_worker.attention.back_ends import random_qkv, shape_of
from tests.gpu_worker.steps import new_request, step

SHAPES = [(9, 3, 64, 16, 0), (4, 4, 32, 8, 100), (8, 1, 128, 32, 0)]


def span_of(first: int, end: int, *, block_size: int) -> InputBatch:
    """The tokens from `first` to before `end` of one request, whose blocks are always the same."""
    block_ids = list(range(1, 1 + -(-end // block_size)))
    state = BatchState(block_size=block_size, num_blocks=100, max_model_len=4096, vocab_size=10)
    known = new_request(1, [1] * end, block_ids, num_computed_tokens=first)
    return input_batch.plan(state, state.apply(step(1, {1: end - first}, new_requests=(known,))))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size", "window"), SHAPES)
def test_in_float32_a_token_has_the_same_bits_alone_and_in_any_chunk(
    heads: int, kv_heads: int, head_dim: int, block_size: int, window: int
) -> None:
    about = shape_of(heads, kv_heads, head_dim, windows=(window,))
    num_tokens = TILE_QUERIES * 3 + 5
    qkv = random_qkv(num_tokens, about, torch.float32)
    attention = BatchedAttention(torch.zeros(100, 1, 2, kv_heads, block_size, head_dim), about)

    def attended(first: int, end: int) -> torch.Tensor:
        return attention.prepare(span_of(first, end, block_size=block_size))(0, qkv[first:end])

    with torch.inference_mode():
        whole = attended(0, num_tokens)
        for first, end in [(0, 1), (15, 16), (63, 64), (64, 65), (num_tokens - 1, num_tokens), (1, 30), (50, 180)]:
            assert torch.equal(attended(first, end), whole[first:end]), f"tokens {first} to {end}"
