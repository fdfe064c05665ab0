"""The pool takes the stated share of the memory, and says what to turn when that is too little."""

from dataclasses import replace

import pytest

from gpu_worker import kv_cache
from gpu_worker.errors import NotEnoughMemory
from gpu_worker.kv_cache import KVShape

SHAPE = KVShape(num_layers=30, num_kv_heads=3, block_size=16, head_dim=64, dtype="bfloat16")


def test_the_share_of_the_available_memory_is_taken() -> None:
    num_blocks = kv_cache.num_blocks_that_fit(
        SHAPE, available_bytes=100 * SHAPE.block_bytes, utilization=0.5, max_model_len=16 * 40
    )
    assert num_blocks == 50


def test_too_little_memory_names_needed_available_and_what_fits() -> None:
    with pytest.raises(NotEnoughMemory) as refused:
        kv_cache.num_blocks_that_fit(SHAPE, available_bytes=2**30, utilization=0.1, max_model_len=8192)
    message = str(refused.value)
    assert "max_model_len 8192 needs 0.18 GiB" in message
    assert "memory_utilization 0.1 of the 1.00 GiB available after loading is 0.10 GiB" in message
    assert "largest max_model_len that fits is 4640" in message
    assert "--max-model-len" in message
    assert "--memory-utilization" in message
    fits = kv_cache.num_blocks_that_fit(SHAPE, available_bytes=2**30, utilization=0.1, max_model_len=4640)
    assert fits == 4640 // 16 + 1


def test_a_pool_of_stated_size_must_fit() -> None:
    kv_cache.check_num_blocks(SHAPE, 10, available_bytes=10 * SHAPE.block_bytes)
    with pytest.raises(NotEnoughMemory, match="At most 10 blocks fit"):
        kv_cache.check_num_blocks(SHAPE, 11, available_bytes=10 * SHAPE.block_bytes)


def test_memory_is_zero_and_costs_nothing_before_it_is_written() -> None:
    memory = kv_cache.allocate(SHAPE, 20_000)  # 7 GiB of addresses
    assert memory.shape == (20_000, 30 * 2 * 3 * 16 * 64 * 2)
    assert memory.ctypes.data % 4096 == 0
    assert not memory[19_999].any()
    memory[19_999, -1] = 1


def test_float32_takes_twice_the_memory() -> None:
    assert replace(SHAPE, dtype="float32").block_bytes == 2 * SHAPE.block_bytes


def test_available_memory_is_a_number_of_this_machine() -> None:
    assert 2**20 < kv_cache.available_bytes() < 2**50
