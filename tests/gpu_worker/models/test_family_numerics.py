"""Every family in the numbers that serve: by the C++ kernels and by torch in bfloat16, and as a quantised file has it.

The measure is the divergence (KL) of the next token's distribution from the one that transformers computes in float32.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from octavo import model_files
from tests.gpu_worker import families, family_gguf, tiny_models
from tests.gpu_worker.models.test_families import EVERYTHING, NUM_TOKENS, logprobs_of, oracle_logprobs
from tests.gpu_worker.models.test_family_gguf import GGUF_FAMILIES
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import Driver, random_ids

PROMPT = random_ids(1, 100)
MOST_DIVERGENCE_AS_STORED = (
    2e-2  # activations in int8, in models of random weights, which are far from sure of anything
)
KERNELS, TORCH = {"block_size": 16}, {"block_size": 8}  # blocks of 8 are what the kernels do not take


@pytest.fixture(scope="module", params=families.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Files, and the oracle over the same weights."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    return folder, families.save(folder, request.param)


def answered(files: model_files.ModelFiles, chunks: tuple[int, ...], **settings: Any) -> tuple[Driver, str]:
    """PROMPT in chunks and NUM_TOKENS of its answer; and which back end it was."""
    ready = tiny_models.ready(files, **settings)
    driver, blocks = Driver(ready.runner), list(range(1, 16))
    driver.step({1: chunks[0]}, new_request(1, PROMPT, blocks, sampling=EVERYTHING))
    for num_tokens in (*chunks[1:], *[1] * (NUM_TOKENS - 1)):
        driver.step({1: num_tokens})
    return driver, ready.identity.attention_backend


def divergence(expected: torch.Tensor, logprobs: torch.Tensor) -> float:
    return float((expected.exp() * (expected - logprobs)).sum(-1).mean())


@pytest.mark.parametrize(("settings", "backend"), [(KERNELS, "cpu_"), (TORCH, "torch_batched")])
def test_bfloat16_is_no_further_from_float32_than_that_of_transformers(
    family: tuple[Path, Any], settings: dict[str, Any], backend: str
) -> None:
    folder, oracle = family
    driver, used = answered(tiny_models.files_of(folder), (100,), dtype="bfloat16", **settings)
    assert used.startswith(backend)
    answer = driver.outputs[1]
    expected = oracle_logprobs(oracle, PROMPT, answer)
    of_transformers = oracle_logprobs(copy.deepcopy(oracle).to(torch.bfloat16), PROMPT, answer)
    assert divergence(expected, logprobs_of(driver)) <= divergence(expected, of_transformers)


def test_the_kernels_give_the_same_bits_in_any_chunks_and_batch(family: tuple[Path, Any]) -> None:
    files = tiny_models.files_of(family[0])
    alone, _ = answered(files, (100,), dtype="bfloat16")
    driver = Driver(tiny_models.ready(files, dtype="bfloat16", num_threads=2).runner)
    others = [
        new_request(handle, random_ids(handle, 150), [*range(15 * handle, 15 * handle + 15)]) for handle in (2, 3)
    ]
    driver.step({2: 150, 3: 20}, *others)
    asking = new_request(1, PROMPT, [60, 14, 3, 62, 11, 9, 1], sampling=EVERYTHING)
    driver.step({2: 1, 1: 1, 3: 33}, asking)
    for num_tokens in (30, 33, 36, *[1] * (NUM_TOKENS - 1)):
        driver.step({2: 1, 1: num_tokens, 3: 5})
    assert driver.outputs[1] == alone.outputs[1]
    assert torch.equal(logprobs_of(driver), logprobs_of(alone))


@pytest.mark.parametrize("name", GGUF_FAMILIES)
def test_a_quantised_file_computed_as_stored_stays_close_to_float32(name: str, tmp_path: Path) -> None:
    oracle = families.save(tmp_path / "hf", name, **GGUF_FAMILIES[name])
    family_gguf.round_to(GGMLQuantizationType.Q8_0, oracle)
    family_gguf.write(tmp_path / "model.gguf", oracle, encoding=GGMLQuantizationType.Q8_0)
    files = model_files.resolve(str(tmp_path / "model.gguf"), cache_dir=tmp_path / "cache")
    driver, used = answered(files, (64, 36), dtype="stored")
    assert used.startswith("cpu_")
    expected = oracle_logprobs(oracle, PROMPT, driver.outputs[1])
    assert divergence(expected, logprobs_of(driver)) <= MOST_DIVERGENCE_AS_STORED
