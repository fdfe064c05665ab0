"""Every family gives what transformers gives: logits and tokens, whole and in chunks, alone and in a paged batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.core.step import Sampling
from gpu_worker.model_runner import ModelRunner
from tests.gpu_worker import families, tiny_models
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import VOCAB_SIZE, Driver, random_ids

NUM_TOKENS = 12
EVERYTHING = Sampling(num_logprobs=VOCAB_SIZE)


@pytest.fixture(scope="module", params=families.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, Any]:
    """A worker's runner in float32, and the oracle over the same weights."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = families.save(folder, request.param)
    return tiny_models.ready(tiny_models.files_of(folder), num_blocks=128).runner, oracle


def oracle_logprobs(oracle: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """[token of the answer, vocabulary]; an answer that is the most likely token everywhere is the greedy one."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def logprobs_of(driver: Driver) -> torch.Tensor:
    """[sampled token, vocabulary] of a driver with one request."""
    positions = [position for execution in driver.executions for position in execution.logprobs]
    logprobs = torch.empty(len(positions), VOCAB_SIZE)
    for row, position in enumerate(positions):
        for entry in position.top:
            logprobs[row, entry.token_id] = entry.logprob
    return logprobs


@pytest.mark.parametrize("chunks", [(100,), (1, 1, 98), (30, 31, 39), (64, 35, 1)])
def test_logits_and_tokens_are_those_of_transformers(family: tuple[ModelRunner, Any], chunks: tuple[int, ...]) -> None:
    runner, oracle = family
    runner.state.reset()
    prompt, driver = random_ids(1, sum(chunks)), Driver(runner)
    driver.step({1: chunks[0]}, new_request(1, prompt, list(range(1, 9)), sampling=EVERYTHING))
    for num_tokens in (*chunks[1:], *[1] * (NUM_TOKENS - 1)):
        driver.step({1: num_tokens})
    expected = oracle_logprobs(oracle, prompt, driver.outputs[1])
    assert driver.outputs[1] == expected.argmax(-1).tolist()
    torch.testing.assert_close(logprobs_of(driver), expected, atol=2e-4, rtol=0)


def test_a_batch_over_scattered_blocks_gives_the_tokens_of_transformers(family: tuple[ModelRunner, Any]) -> None:
    runner, oracle = family
    runner.state.reset()
    driver, blocks = Driver(runner), random_ids(3, 512)
    free = [block for block in dict.fromkeys(block % 128 for block in blocks) if block]
    prompts = {handle: random_ids(handle, length) for handle, length in enumerate((3, 20, 70, 130), start=1)}
    for handle, prompt in prompts.items():  # one more request joins with each step
        joining = new_request(handle, prompt, [free.pop() for _ in range(11)])
        driver.step({**driver.longest_rows(48), handle: min(48, len(prompt))}, joining)
    for _ in range(NUM_TOKENS):
        driver.step(driver.longest_rows(48))
    for handle, prompt in prompts.items():
        answer = driver.outputs[handle]
        assert len(answer) >= NUM_TOKENS - 2
        assert answer == oracle_logprobs(oracle, prompt, answer).argmax(-1).tolist()
