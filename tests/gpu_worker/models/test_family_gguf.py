"""A GGUF of any family needs no config.json: its metadata and its names give the model that transformers has."""

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import model_files
from tests.gpu_worker import families, family_gguf, tiny_models
from tests.gpu_worker.models.test_families import EVERYTHING, logprobs_of, oracle_logprobs
from tests.gpu_worker.steps import new_request
from tests.gpu_worker.tiny_models import Driver, random_ids

# What llama.cpp takes for granted of a Gemma is not in its file: the scale of scores, which layers see everything, and
# that the embedding is the head.
GGUF_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 32, "tie_word_embeddings": True},
    "gemma3": {
        "query_pre_attn_scalar": 32, "tie_word_embeddings": True, "layer_types": None, "num_hidden_layers": 7,
    },
    "gemma3_scaled": {"query_pre_attn_scalar": 32},
}  # fmt: skip


@pytest.mark.parametrize("name", GGUF_FAMILIES)
def test_a_gguf_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    oracle = families.save(tmp_path / "hf", name, **GGUF_FAMILIES[name])
    family_gguf.write(tmp_path / "model.gguf", oracle)
    files = model_files.resolve(str(tmp_path / "model.gguf"), cache_dir=tmp_path / "cache")
    driver, prompt = Driver(tiny_models.ready(files).runner), random_ids(2, 90)
    driver.step({1: 90}, new_request(1, prompt, list(range(1, 8)), sampling=EVERYTHING))
    driver.step({1: 1})
    expected = oracle_logprobs(oracle, prompt, driver.outputs[1])
    torch.testing.assert_close(logprobs_of(driver), expected, atol=2e-4, rtol=0)
