"""How far the demo model's distributions are from those in float32, in both numerics of the kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from gpu_worker.core.input_batch import InputBatch
from gpu_worker.models.interface import Model
from octavo import model_files
from tests.gpu_worker import tiny_models
from tests.gpu_worker.cpu.random_models import batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Half a page of text that the model finds neither trivial nor strange, as token ids.
TEXT = (
    "The lighthouse had been built in 1851 by two brothers from Cornwall, who carried every stone up the cliff by "
    "hand. When the storm of 1903 took the roof, the keeper's daughter kept the lamp burning for three nights, and 14 "
    "ships found their way home. def area(radius):\n    return 3.14159 * radius ** 2\n\nWater boils at 100 degrees "
    "Celsius at sea level; on a mountain it boils sooner, because the air presses less. Paris is the capital of "
    "France, Rome that of Italy, and Madrid that of Spain. "
) * 2


@pytest.fixture(scope="module")
def step() -> InputBatch:
    """One prompt whose tokens all are sampled: a distribution for every position."""
    files = model_files.resolve(None)
    token_ids = Tokenizer.from_file(str(files.config_dir / "tokenizer.json")).encode(TEXT).ids
    num_tokens = len(token_ids)
    everywhere = np.arange(num_tokens)
    return replace(
        batch((token_ids, 0, list(range(1, num_tokens // 16 + 2)))),
        sampled_slots=everywhere,
        sampled_token_indices=everywhere,
    )


def model_in(dtype: str) -> Model:
    return tiny_models.ready(model_files.resolve(None), dtype=dtype, num_blocks=64, max_model_len=512).runner._model


@pytest.fixture(scope="module")
def float32(step: InputBatch) -> torch.Tensor:
    with torch.inference_mode():
        return model_in("float32").prepare(step)().log_softmax(-1)


@pytest.mark.parametrize(
    ("dtype", "mean_kl", "largest_kl", "top_1"), [("bfloat16", 0.0005, 0.006, 0.98), ("stored", 0.005, 0.05, 0.94)]
)
def test_distributions_stay_close_to_those_of_float32(
    step: InputBatch, float32: torch.Tensor, dtype: str, *, mean_kl: float, largest_kl: float, top_1: float
):
    logprobs = model_in(dtype).prepare(step)().log_softmax(-1)
    divergences = (float32.exp() * (float32 - logprobs)).sum(-1)
    agreed = (logprobs.argmax(-1) == float32.argmax(-1)).float().mean()
    assert divergences.mean() < mean_kl
    assert divergences.max() < largest_kl
    assert agreed > top_1
