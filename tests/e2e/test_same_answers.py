"""Greedy tokens equal transformers' on the same weights in fp32, whatever batch, budget, cache and pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.oracle import Oracle
from tests.e2e.prompts import all_prompts, quick_prompts
from tests.e2e.stack import Answer, Stack

NUM_TOKENS = 64
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Case:
    """Flags of a stack, and how many requests are at once in each round: the first is cold, the others are warm."""

    flags: tuple[str, ...]
    rounds: tuple[int, ...] = (16, 16)


CASES = {
    "budget-16": Case(("--max-num-batched-tokens", "16")),
    "budget-64": Case(("--max-num-batched-tokens", "64"), rounds=(16, 4, 1)),
    "budget-2048": Case(("--max-num-batched-tokens", "2048")),
    "small-pool": Case(("--num-blocks", "72", "--max-num-batched-tokens", "256")),
    "two-workers": Case(("--num-workers", "2")),
}


def assert_same(oracle: Oracle, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> None:
    for ids, answer in zip(prompts, answers, strict=True):
        expected = oracle.expect(ids, NUM_TOKENS)
        assert answer.token_ids == expected.token_ids, f"prompt {ids[:16]} ({len(ids)} tokens)"
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=LOGPROB_TOLERANCE)
        assert answer.finish_reason == "LENGTH"


@pytest.mark.slow
def test_answers_equal_transformers_cold_and_warm_alone_and_together(stack: Stack, oracle: Oracle) -> None:
    prompts = [stack.tokenize(prompt) for prompt in quick_prompts()]
    cold = stack.generate(prompts, max_tokens=NUM_TOKENS, at_once=4)
    warm = stack.generate(prompts, max_tokens=NUM_TOKENS)
    assert_same(oracle, prompts, cold)
    assert_same(oracle, prompts, warm)
    assert [answer.num_cached_tokens for answer in warm] == [(len(ids) - 1) // 16 * 16 for ids in prompts]


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_answers_equal_transformers_in_every_stack(name: str, tmp_path: Path, oracle: Oracle) -> None:
    case, num_preemptions = CASES[name], 0
    with Stack(tmp_path, *case.flags) as stack:
        prompts = [stack.tokenize(prompt) for prompt in all_prompts()]
        for at_once in case.rounds:
            answers = stack.generate(prompts, max_tokens=NUM_TOKENS, at_once=at_once)
            assert_same(oracle, prompts, answers)
            num_preemptions += sum(answer.num_preemptions for answer in answers)
    if name == "small-pool":
        assert num_preemptions > 0, "the pool was not small enough to test preemption"
