"""The sampler draws from exactly the distribution asked for, and a row's draw is its own affair."""

from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker import sampler
from gpu_worker.core.batch_state import BatchState, Indices, Rows
from gpu_worker.core.step import Sampling
from gpu_worker.sampler import Sampled
from tests.gpu_worker.steps import new_request, step

VOCAB_SIZE = 3000
PROMPT = [5, 6, 7]


def state_with(samplings: list[Sampling], *, outputs: list[int] | None = None) -> tuple[BatchState, Indices]:
    """A mirror with a request per sampling, all with the same prompt and outputs; and their slots."""
    state = BatchState(block_size=16, num_blocks=100_000, max_model_len=256, vocab_size=VOCAB_SIZE)
    tokens = PROMPT + (outputs or [])
    new = tuple(
        new_request(handle, tokens, [1], sampling=sampling, num_prompt_tokens=len(PROMPT))
        for handle, sampling in enumerate(samplings)
    )
    rows = state.apply(step(1, {request.handle: len(tokens) for request in new}, new_requests=new))
    return state, rows.slots


def draw(logits: torch.Tensor, samplings: list[Sampling], *, outputs: list[int] | None = None) -> Sampled:
    state, slots = state_with(samplings, outputs=outputs)
    return sampler.sample(logits.clone(), state, slots)


def logits_of(seed: int, num_rows: int = 1, *, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def expected_distribution(logits: torch.Tensor, sampling: Sampling) -> np.ndarray[Any, Any]:
    """By sorting everything, as the definition of each cut says."""
    weights = (logits.double() / sampling.temperature).softmax(-1)
    weights, order = weights.sort(descending=True)
    weights[weights < sampling.min_p * weights[0]] = 0
    if 0 < sampling.top_k < len(weights):
        weights[sampling.top_k :] = 0
    weights /= weights.sum()
    before = weights.cumsum(-1) - weights
    weights[before >= sampling.top_p] = 0
    unsorted = torch.zeros_like(weights)
    unsorted[order] = weights / weights.sum()
    return unsorted.numpy()


CUTS: dict[str, dict[str, Any]] = {
    "temperature only": {"temperature": 0.8},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 1.0, "top_k": 7},
    "top_k beyond the first look": {"temperature": 2.0, "top_k": 300},
    "top_p": {"temperature": 0.7, "top_p": 0.8},
    "top_p of nearly all": {"temperature": 3.0, "top_p": 0.99},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "min_p beyond the first look": {"temperature": 2.5, "min_p": 0.01},
    "all": {"temperature": 1.2, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "top_k of more than there are": {"temperature": 1.0, "top_k": 10**6},
    "top_k and top_p": {"temperature": 2.0, "top_k": 100, "top_p": 0.5},
}


@pytest.mark.parametrize("name", CUTS)
def test_draws_follow_the_distribution(name: str) -> None:
    num_draws, logits = 6000, logits_of(3)
    samplings = [Sampling(**CUTS[name], seed=seed) for seed in range(num_draws)]
    tokens = np.concatenate(
        [draw(logits.expand(500, -1), samplings[at : at + 500]).token_ids for at in range(0, num_draws, 500)]
    )
    expected = expected_distribution(logits[0], samplings[0]) * num_draws
    counts = np.bincount(tokens, minlength=VOCAB_SIZE)
    assert not counts[expected == 0].any(), "a token that was cut away was drawn"
    common = expected >= 10
    groups = [(counts[common], expected[common]), (counts[~common].sum()[None], expected[~common].sum()[None])]
    observed, wanted = (np.concatenate(part) for part in zip(*groups, strict=True))
    chi_square = ((observed - wanted) ** 2 / np.maximum(wanted, 1)).sum()
    freedom = len(observed) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom + 1)


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    cuts: list[dict[str, Any]] = [*CUTS.values(), {}, {"num_logprobs": 1}]
    samplings = [Sampling(**cut, seed=seed) for seed, cut in enumerate(cuts)]
    logits = logits_of(1, len(samplings))
    together = draw(logits, samplings).token_ids
    backwards = draw(logits.flip(0), samplings[::-1]).token_ids[::-1]
    alone = [int(draw(logits[row : row + 1], [sampling]).token_ids[0]) for row, sampling in enumerate(samplings)]
    assert together.tolist() == backwards.tolist() == alone


def test_a_draw_is_a_function_of_seed_and_position() -> None:
    logits = logits_of(2)
    hot = [Sampling(temperature=2.0, seed=seed) for seed in range(64)]
    first = draw(logits.expand(64, -1), hot).token_ids
    assert (first == draw(logits.expand(64, -1), hot).token_ids).all()
    assert (first != draw(logits.expand(64, -1), hot, outputs=[9]).token_ids).mean() > 0.8
    assert len(set(first.tolist())) > 40


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.zeros(2, VOCAB_SIZE, dtype=torch.bfloat16)
    logits[1, [40, 90]] = 3.0
    assert draw(logits, [Sampling(), Sampling()]).token_ids.tolist() == [0, 40]
    assert draw(logits, [Sampling(temperature=1e-9), Sampling(top_p=0.1)]).token_ids.tolist() == [0, 40]


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"repetition_penalty": 1.3},
        {"presence_penalty": -0.5, "frequency_penalty": 0.4, "repetition_penalty": 0.8},
    ],
)
def test_penalties_are_those_of_the_definition(penalties: dict[str, Any]) -> None:
    outputs = [9, 9, 6, 2999, 9]
    logits = logits_of(4)
    state, slots = state_with([Sampling(**penalties)], outputs=outputs)
    adjusted = logits.clone()
    sampler._adjust(adjusted[0], sampler._Row(index=0, request=state.request(int(slots[0])), num_tokens=8))
    expected = logits[0].clone()
    sampling = Sampling(**penalties)
    for token in range(VOCAB_SIZE):
        if token in PROMPT + outputs:
            factor = sampling.repetition_penalty
            expected[token] = expected[token] / factor if expected[token] > 0 else expected[token] * factor
        expected[token] -= sampling.frequency_penalty * outputs.count(token)
        expected[token] -= sampling.presence_penalty * (token in outputs)
    torch.testing.assert_close(adjusted[0], expected)


def test_penalties_count_the_tokens_fed_back() -> None:
    state, slots = state_with([Sampling(frequency_penalty=100.0)])
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [50, 60, 70]] = torch.tensor([3.0, 2.0, 1.0])
    drawn = []
    for seq in range(2, 6):
        token = sampler.sample(logits.clone(), state, slots).token_ids
        state.advance(state.apply(step(seq)) if seq > 2 else _prompt(slots), slots, token)
        drawn += token.tolist()
    assert drawn == [50, 60, 70, 0]


def _prompt(slots: Indices) -> Rows:
    return Rows(slots=slots, num_scheduled_tokens=np.array([len(PROMPT)]))


def test_logit_bias_moves_a_token_up_or_out() -> None:
    logits = logits_of(5)
    best = int(logits.argmax())
    assert draw(logits, [Sampling(logit_bias={17: 100.0})]).token_ids[0] == 17
    assert draw(logits, [Sampling(logit_bias={best: -100.0})]).token_ids[0] != best


def test_ending_tokens_wait_for_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [2, 8, 30]] = torch.tensor([9.0, 8.0, 1.0])
    sampling = Sampling(min_tokens=2, ending_token_ids=(2, 8))
    assert draw(logits, [sampling], outputs=[4]).token_ids[0] == 30
    assert draw(logits, [sampling], outputs=[4, 4]).token_ids[0] == 2


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = logits_of(6, 3)
    samplings = [
        Sampling(num_logprobs=3, temperature=5.0, seed=1, logit_bias={3: 100.0}),
        Sampling(),
        Sampling(num_logprobs=0),
    ]
    sampled = draw(logits, samplings)
    first, last = sampled.logprobs
    expected = logits.log_softmax(-1)
    assert first.sampled.token_id == 3
    assert first.sampled.logprob == pytest.approx(float(expected[0, 3]), abs=1e-5)
    assert [top.token_id for top in first.top] == expected[0].topk(3).indices.tolist()
    assert [top.logprob for top in first.top] == pytest.approx(expected[0].topk(3).values.tolist(), abs=1e-5)
    assert last.top == ()
    assert last.sampled.logprob == pytest.approx(float(expected[2].max()), abs=1e-5)
