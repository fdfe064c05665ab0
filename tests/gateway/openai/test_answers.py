"""Events become choices, usage and timing."""

from gateway.core.generation import Finished, FinishReason, TextChunk, Timing, Usage
from gateway.openai import answers
from gateway.openai.answers import Answer, Figures


def finished(e2e_s: float = 1.0, **changes: int) -> Finished:
    counts = {"num_prompt_tokens": 5, "num_completion_tokens": 3, "num_cached_tokens": 4} | changes
    timing = Timing(queue_s=0.1, prefill_s=0.25, decode_s=0.5, ttft_s=0.35, e2e_s=e2e_s, num_preemptions=1)
    return Finished(usage=Usage(**counts), timing=timing)


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt():
    answer = Answer(num_prompts=2, n=2)
    for prompt, index in [(1, 1), (0, 0), (1, 0), (0, 1)]:
        await answer.add(prompt, TextChunk(index=index, text=f"{prompt}{index}", token_ids=(prompt, index)))
    assert [choice.text for choice in answer.choices] == ["00", "01", "10", "11"]
    assert answer.choices[3].token_ids == [1, 1]


async def test_chunks_of_one_choice_are_joined_and_the_last_says_why_it_ended():
    answer = Answer(num_prompts=1, n=1)
    await answer.add(0, TextChunk(index=0, text="a", token_ids=(1,)))
    await answer.add(
        0, TextChunk(index=0, text="b", token_ids=(2,), finish_reason=FinishReason.STOP, stop_sequence="END")
    )
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("ab", FinishReason.STOP, "END")


def test_a_stop_token_is_told_where_no_sequence_stopped():
    assert answers.stop_reason(TextChunk(index=0, text="", token_ids=(), stop_token_id=0)) == 0
    assert answers.stop_reason(TextChunk(index=0, text="", token_ids=())) is None


def test_usage_is_summed_over_prompts_and_tells_cached_tokens():
    figures = Figures()
    figures.add(finished())
    figures.add(finished(num_cached_tokens=0))
    assert answers.usage_json(figures.usage) == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_metrics_are_those_of_the_slowest_generation():
    figures = Figures()
    figures.add(finished(1.0))
    figures.add(finished(3.0))
    assert answers.metrics_json(figures) == {
        "queue_s": 0.1,
        "prefill_s": 0.25,
        "decode_s": 0.5,
        "time_to_first_token_s": 0.35,
        "total_s": 3.0,
        "output_tokens_per_s": 8.0,
        "num_preemptions": 2,
    }


def test_server_timing_is_in_milliseconds():
    expected = "queue;dur=100.000, prefill;dur=250.000, decode;dur=500.000, ttft;dur=350.000, total;dur=1000.000"
    assert answers.server_timing(finished().timing) == expected
