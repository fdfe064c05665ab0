"""The fused step gives what a float64 oracle gives that rounds at the same places, and the same bits in every batch."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from gpu_worker.cpu import library
from gpu_worker.cpu.fused_model import FusedModel, misfit
from gpu_worker.cpu.library import Library
from tests.gpu_worker.cpu import random_models
from tests.gpu_worker.cpu.kernels import ISAS, kernels_of
from tests.gpu_worker.cpu.random_models import FORMATS, SHAPES, Floats, RandomModel, batch, random_ids

NUM_BLOCKS = 256
BLOCKS_A, BLOCKS_B = list(range(1, 60)), list(range(100, 160))


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    with kernels_of(request.param) as opened:
        yield opened


@cache
def made(shape: str, formats: str) -> RandomModel:
    return random_models.make(library.opened(), shape, formats)


@cache
def oracle(shape: str, formats: str, prompt: tuple[int, ...]) -> Floats:
    return made(shape, formats).logits(prompt)


def logits(model: FusedModel, *rows: tuple[list[int], int, list[int]]) -> torch.Tensor:
    return model.prepare(batch(*rows))().clone()


def error_of(given: torch.Tensor, expected: Floats) -> float:
    """Root mean square, relative to how much the logits vary."""
    return float(np.sqrt(((given.numpy() - expected) ** 2).mean()) / expected.std())


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_alone_gives_what_the_oracle_gives(kernels: Library, shape: str, formats: str):
    """To rounding of sums; a value at the edge of two steps may fall to the other side, in few tokens."""
    fused = made(shape, formats).fused(kernels)
    errors = [error_of(logits(fused, ([token], 0, [1]))[0], oracle(shape, formats, (token,))) for token in range(9)]
    assert np.median(errors) < 1e-4
    assert max(errors) < 0.03


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_gives_what_the_oracle_gives(kernels: Library, shape: str, formats: str):
    """To the rounding of probabilities, which moves other values over the edges of their steps."""
    fused = made(shape, formats).fused(kernels)
    for seed, length in ((2, 45), (3, 150)):
        prompt = random_ids(seed, length)
        given, expected = logits(fused, (prompt, 0, BLOCKS_A))[0], oracle(shape, formats, tuple(prompt))
        assert error_of(given, expected) < (0.02 if formats == "bf16" else 0.1), f"{length} tokens"
        assert int(given.argmax()) in np.argsort(expected)[-3:]


@pytest.mark.parametrize(
    ("shape", "formats"), [("llama", "bf16"), ("llama", "q4"), ("gemma", "q8"), ("gemma", "mixed")]
)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_request_has_the_same_bits_however_it_is_computed(
    kernels: Library, shape: str, formats: str, num_threads: int
):
    model = made(shape, formats)
    prompt, other = random_ids(4, 600), random_ids(5, 60)
    alone = logits(model.fused(kernels), (prompt, 0, BLOCKS_A))[0]
    fused = model.fused(kernels, num_threads=num_threads)
    for cuts in ((600,), (1, 2, 300, 301, 599, 600), (128, 512, 600)):
        computed = 0
        for step, end in enumerate(cuts):
            both = (other[step : step + 7], step, BLOCKS_B), (prompt[computed:end], computed, BLOCKS_A)
            given = logits(fused, *both)
            computed = end
        assert torch.equal(given[1], alone), f"cut at {cuts}"


@pytest.mark.parametrize("formats", FORMATS)
def test_a_token_has_the_same_bits_among_many_rows(kernels: Library, formats: str):
    fused = made("llama", formats).fused(kernels, num_threads=2)
    prompt = random_ids(6, 90)
    alone = logits(fused, (prompt, 0, BLOCKS_A))[0]
    for num_others in (1, 3, 4, 11, 40, 100):
        others = [([i % 200], 0, [100 + i]) for i in range(num_others)]
        rows = [*others[: num_others // 2], ([prompt[-1]], 89, BLOCKS_A), *others[num_others // 2 :]]
        assert torch.equal(logits(fused, *rows)[num_others // 2], alone), f"{num_others} others"


def test_a_shared_prefix_read_from_other_blocks_gives_the_same_bits(kernels: Library):
    fused = made("llama", "q4").fused(kernels)
    prompt = random_ids(7, 130)
    cold = logits(fused, (prompt, 0, BLOCKS_A))[0]
    warm = logits(fused, (prompt[64:], 64, [*BLOCKS_A[:4], *BLOCKS_B]))[0]
    assert torch.equal(warm, cold)


def test_a_step_without_samples_stores_k_and_v(kernels: Library):
    fused = made("gemma", "bf16").fused(kernels)
    prompt = random_ids(8, 40)
    whole = logits(fused, (prompt, 0, BLOCKS_A))[0]
    silent = batch((prompt[:33], 0, BLOCKS_B))
    nothing = type(silent)(
        **{name: getattr(silent, name) for name in silent.__slots__ if not name.startswith("sampled")},
        sampled_slots=np.zeros(0, dtype=np.int64),
        sampled_token_indices=np.zeros(0, dtype=np.int64),
    )
    assert fused.prepare(nothing)().shape == (0, random_models.VOCAB_SIZE)
    assert torch.equal(logits(fused, (prompt[33:], 33, BLOCKS_B))[0], whole)


@pytest.mark.parametrize(
    ("changes", "block_size", "reason"),
    [({}, 8, "block_size is 8"), ({"head_dim": 24}, 16, "head_dim is 24"), ({"hidden_size": 80}, 16, "inputs")],
)
def test_what_the_kernels_cannot_run_is_named(changes: dict[str, int], block_size: int, reason: str):
    assert reason in (misfit(random_models.config(**changes), block_size=block_size) or "")


def test_what_the_kernels_run_has_no_misfit():
    assert misfit(random_models.config(), block_size=32) is None
