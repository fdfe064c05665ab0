"""A second real model, Gemma 3 270M, gives what transformers gives over the same file, and stays close when quantised.

transformers reads the GGUF by itself here: names, metadata, norms and tokenizer are its own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_worker.core.step import Sampling
from octavo import model_files
from octavo.model_files import ModelFiles
from tests.gpu_worker import tiny_models
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STORY = Path(__file__).parents[2] / "docs" / "decisions.md"
NUM_STORY_TOKENS = 700  # beyond the window of 512
NUM_TOKENS, NUM_TOP = 24, 50


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.resolve("gemma-3-270m")


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Any:
    return AutoTokenizer.from_pretrained(files.config_dir)


@pytest.fixture(scope="module")
def oracle(files: ModelFiles) -> Any:
    folder, name = files.weights.parent, files.weights.name
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["float32", "bfloat16", "stored"])
def ready(request: pytest.FixtureRequest, files: ModelFiles) -> Any:
    settings = {"num_blocks": 64, "max_model_len": 1024, "max_num_batched_tokens": 512}
    return request.param, tiny_models.ready(files, dtype=request.param, **settings).runner


def test_its_tokenizer_gives_the_ids_of_transformers(files: ModelFiles, tokenizer: Any) -> None:
    theirs = AutoTokenizer.from_pretrained(files.weights.parent, gguf_file=files.weights.name)
    texts = [
        "Hello world", "  two  spaces", "\n\n\tx = 1\r\n", "naïve ☃ \U0001f600 1234567", "日本語 и русский", "",
        "<start_of_turn>user\nHi<end_of_turn>\n", "def f(a):\n        return a\n", STORY.read_text(encoding="utf-8"),
    ]  # fmt: skip
    assert [tokenizer(text).input_ids for text in texts] == [theirs(text).input_ids for text in texts]


@pytest.mark.parametrize("chunk", [512, 100])
def test_answers_to_short_and_long_prompts(ready: Any, oracle: Any, tokenizer: Any, chunk: int) -> None:
    """In float32 the tokens are equal; else the tokens that transformers holds most likely get its probabilities."""
    dtype, runner = ready
    story = tokenizer(STORY.read_text(encoding="utf-8")).input_ids[:NUM_STORY_TOKENS]
    for prompt in (tokenizer("The capital of France is").input_ids, story):
        driver = Driver(runner)
        runner.state.reset()
        asking = new_request(1, prompt, list(range(1, 50)), sampling=Sampling(num_logprobs=NUM_TOP))
        driver.step({1: min(chunk, len(prompt))}, asking)
        while len(driver.outputs[1]) < NUM_TOKENS:
            driver.step(driver.longest_rows(chunk))
        answer = driver.outputs[1]
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        if dtype == "float32":
            assert answer == logits.argmax(-1).tolist()
        assert _divergence(driver, logits.log_softmax(-1)) <= {"float32": 1e-6, "bfloat16": 2e-3, "stored": 5e-3}[dtype]


def _divergence(driver: Driver, expected: torch.Tensor) -> float:
    """KL over the most likely tokens of ours, the rest counted as one."""
    positions = [position for execution in driver.executions for position in execution.logprobs]
    ids = torch.tensor([[entry.token_id for entry in position.top] for position in positions])
    ours = torch.tensor([[entry.logprob for entry in position.top] for position in positions]).double().exp()
    theirs = expected.double().exp().gather(1, ids)
    ours, theirs = (torch.cat((part, 1 - part.sum(-1, keepdim=True)), -1).clamp_min(1e-9) for part in (ours, theirs))
    return float((theirs * (theirs / ours).log()).sum(-1).mean())
