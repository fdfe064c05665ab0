"""The runner gives what transformers gives, whatever the batch, the chunks and the blocks."""

from pathlib import Path
from typing import Any

import pytest

from gpu_worker.core.step import BadStep
from gpu_worker.model_runner import ModelRunner
from tests.gpu_worker import tiny_models
from tests.gpu_worker.conftest import MakeRunner
from tests.gpu_worker.steps import new_request, packed, step
from tests.gpu_worker.tiny_models import Driver, greedy, random_ids


def run_alone(runner: ModelRunner, prompt: list[int], num_tokens: int, block_ids: list[int]) -> list[int]:
    """Compute the prompt in one step, then a token each."""
    driver = Driver(runner)
    driver.step({1: len(prompt)}, new_request(1, prompt, block_ids))
    for _ in range(num_tokens - 1):
        driver.step({1: 1})
    return driver.outputs[1]


@pytest.mark.parametrize("shape", tiny_models.SHAPES)
def test_every_shape_of_llama_gives_the_tokens_of_transformers(shape: str, tmp_path: Path) -> None:
    oracle = tiny_models.save_llama(tmp_path, shape)
    runner = tiny_models.ready(tiny_models.files_of(tmp_path)).runner
    for seed, length in ((1, 1), (2, 16), (3, 100)):
        prompt = random_ids(seed, length)
        runner.state.reset()
        assert run_alone(runner, prompt, 24, list(range(1, 9))) == greedy(oracle, prompt, 24)


def test_qwen2_with_its_biases_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    oracle = tiny_models.save_qwen2(tmp_path)
    runner = tiny_models.ready(tiny_models.files_of(tmp_path)).runner
    prompt = random_ids(1, 40)
    assert run_alone(runner, prompt, 24, list(range(1, 9))) == greedy(oracle, prompt, 24)


@pytest.mark.parametrize("chunks", [(90,), (16, 74), (1, 1, 88), (30, 30, 30), (64, 17, 9), (45, 1, 44)])
def test_a_chunked_prompt_gives_the_same_tokens(runner: ModelRunner, gqa_oracle: Any, chunks: tuple[int, ...]) -> None:
    prompt, driver = random_ids(4, 90), Driver(runner)
    driver.step({1: chunks[0]}, new_request(1, prompt, list(range(1, 9))))
    for num_tokens in (*chunks[1:], *[1] * 15):
        driver.step({1: num_tokens})
    assert driver.outputs[1] == greedy(gqa_oracle, prompt, 16)


def test_decode_rows_and_chunks_of_many_lengths_share_a_step(make_runner: MakeRunner, gqa_oracle: Any) -> None:
    driver = Driver(make_runner(num_blocks=256))
    prompts = {handle: random_ids(handle, length) for handle, length in enumerate((1, 5, 16, 33, 120, 250), start=1)}
    for handle, prompt in prompts.items():  # one more request joins with each step
        joining = new_request(handle, prompt, list(range(30 * handle, 30 * handle + 20)))
        driver.step({**driver.longest_rows(48), handle: min(48, len(prompt))}, joining)
    for _ in range(24):
        driver.step(driver.longest_rows(48))
    for handle, prompt in prompts.items():
        assert len(driver.outputs[handle]) >= 19
        assert driver.outputs[handle] == greedy(gqa_oracle, prompt, len(driver.outputs[handle]))


def test_blocks_may_lie_anywhere_and_come_one_by_one(make_runner: MakeRunner, gqa_oracle: Any) -> None:
    driver, prompt = Driver(make_runner(block_size=8)), random_ids(9, 20)
    blocks = [41, 3, 62, 17, 5, 29, 11]
    driver.step({1: 20}, new_request(1, prompt, blocks[:3]))
    num_given = 3
    for computed in range(20, 52):
        if computed // 8 >= num_given:
            driver.step({1: 1}, new_block_rows=packed([0]), new_block_ids=packed([blocks[num_given]]))
            num_given += 1
        else:
            driver.step({1: 1})
    assert num_given == 7
    assert driver.outputs[1] == greedy(gqa_oracle, prompt, 33)


def test_a_request_that_starts_at_a_shared_prefix_gives_the_same_tokens(runner: ModelRunner, gqa_oracle: Any) -> None:
    driver, shared = Driver(runner), random_ids(5, 48)
    a, b = shared + random_ids(6, 9), shared + random_ids(7, 30)
    driver.step({1: len(a)}, new_request(1, a, [1, 2, 3, 4, 5]))
    late = new_request(2, b, [1, 2, 3, 9, 10, 11], num_computed_tokens=48)
    driver.step({1: 1, 2: 30}, late)
    for _ in range(9):
        driver.step({1: 1, 2: 1})
    assert driver.outputs[1] == greedy(gqa_oracle, a, 11)
    assert driver.outputs[2] == greedy(gqa_oracle, b, 10)


def test_a_prefix_written_in_the_same_step_may_be_read_in_it(runner: ModelRunner, gqa_oracle: Any) -> None:
    driver, shared = Driver(runner), random_ids(5, 32)
    a, b = [*shared, 7], [*shared, 8, 9]
    both = new_request(1, a, [1, 2, 3]), new_request(2, b, [1, 2, 4], num_computed_tokens=32)
    driver.step({1: 33, 2: 2}, *both)
    assert driver.outputs == {1: greedy(gqa_oracle, a, 1), 2: greedy(gqa_oracle, b, 1)}


def test_a_preempted_request_resumes_with_what_it_had(runner: ModelRunner, gqa_oracle: Any) -> None:
    driver, prompt = Driver(runner), random_ids(8, 30)
    driver.step({1: 30}, new_request(1, prompt, [1, 2, 3]))
    for _ in range(7):
        driver.step({1: 1})
    known = prompt + driver.outputs[1]
    driver.step({1: 38}, new_request(1, known, [20, 21, 22, 23], epoch=1, num_prompt_tokens=30))
    for _ in range(10):
        driver.step({1: 1})
    assert driver.outputs[1] == greedy(gqa_oracle, prompt, 19)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_gets_the_same_tokens_alone_and_in_a_batch(make_runner: MakeRunner, dtype: str) -> None:
    prompt = random_ids(1, 50)
    alone = run_alone(make_runner(dtype=dtype), prompt, 30, list(range(1, 7)))
    driver = Driver(make_runner(dtype=dtype))
    others = [new_request(handle, random_ids(handle, 40), [10 * handle + i for i in range(5)]) for handle in (2, 3, 4)]
    driver.step({2: 40, 1: 50, 3: 40, 4: 40}, new_request(1, prompt, list(range(1, 7))), *others)
    for _ in range(29):
        driver.step({2: 1, 1: 1, 3: 1, 4: 1})
    assert driver.outputs[1] == alone


def test_more_tokens_than_the_buffers_take_are_refused(make_runner: MakeRunner) -> None:
    runner = make_runner(max_num_batched_tokens=32)
    with pytest.raises(BadStep, match="step 1 has 33 tokens; this worker takes 32"):
        runner.execute(step(1, {1: 33}, new_requests=(new_request(1, random_ids(1, 40), [1, 2, 3]),)))


def test_bfloat16_stays_close_to_float32(make_runner: MakeRunner, gqa_oracle: Any) -> None:
    prompts = [random_ids(seed, 40) for seed in range(20)]
    agreed = 0
    for prompt in prompts:
        runner = make_runner(dtype="bfloat16")
        agreed += run_alone(runner, prompt, 1, [1, 2, 3]) == greedy(gqa_oracle, prompt, 1)
    assert agreed >= 17
