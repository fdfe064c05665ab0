"""What is resolved before a request goes to the scheduler, and what its tokens tell when a message is lost."""

import pytest

from gateway.core.generation import FinishReason, Sampling
from gateway.core.submission import (
    ResolvedStopping,
    SamplingDefaults,
    end_told_by,
    resolve_sampling,
    seed_of_choice,
)

STOPPING = ResolvedStopping(max_tokens=3, min_tokens=0, ignore_eos=False, eos_token_ids=(9,), stop_token_ids=(7,))


@pytest.mark.parametrize(
    ("output_token_ids", "reason"),
    [
        ([], None),
        ([1, 2], None),
        ([1, 9], FinishReason.STOP),
        ([7], FinishReason.STOP),
        ([1, 2, 3], FinishReason.LENGTH),
        ([1, 2, 9], FinishReason.STOP),
    ],
)
def test_the_tokens_tell_the_end(output_token_ids: list[int], reason: FinishReason | None):
    ended = end_told_by(STOPPING, output_token_ids)
    assert (ended and ended.reason) == reason


def test_a_request_that_ignores_the_end_of_sequence_goes_on_after_it():
    stopping = ResolvedStopping(max_tokens=3, min_tokens=0, ignore_eos=True, eos_token_ids=(9,), stop_token_ids=())
    assert end_told_by(stopping, [9]) is None


def test_what_is_left_out_takes_the_models_default_and_what_is_given_stands():
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    resolved = resolve_sampling(Sampling(temperature=0.0, top_k=-1), defaults, seed=5, num_logprobs=None)
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.seed) == (0.0, 0, 1.0, 5)
    assert resolve_sampling(Sampling(), defaults, seed=5, num_logprobs=None).top_k == 20


def test_seeds_fit_64_bits_and_the_first_answer_has_the_callers():
    assert seed_of_choice(7, 0) == 7
    assert seed_of_choice(-1, 0) == 2**64 - 1
    derived = [seed_of_choice(7, index) for index in range(64)]
    assert len(set(derived)) == 64
    assert all(0 <= seed < 2**64 for seed in derived)
    assert derived == [seed_of_choice(7, index) for index in range(64)]
