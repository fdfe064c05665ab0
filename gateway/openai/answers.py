"""Turns the events of one or several generations into the parts of an answer: choices, usage, timing.

Pure state, one object per HTTP request; knows OpenAI's field names and nothing of how they are sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.core.generation import (
    Finished,
    FinishReason,
    GenerationEvent,
    PositionLogprobs,
    Started,
    TextChunk,
    Timing,
    Usage,
)
from gateway.openai.json_value import Json


@dataclass(slots=True)
class Choice:
    """One answer, as far as it has come."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, chunk: TextChunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = stop_reason(chunk)


class Answer:
    """Collects the events of `num_prompts` generations with `n` choices each; choices are numbered across them."""

    def __init__(self, *, num_prompts: int, n: int) -> None:
        self.choices = [Choice() for _ in range(num_prompts * n)]
        self.figures = Figures()
        self._n = n

    async def add(self, prompt_index: int, event: GenerationEvent) -> None:
        """A sink for `generating.generate_all`."""
        if isinstance(event, TextChunk):
            self.choices[prompt_index * self._n + event.index].add(event)
        else:
            self.figures.add(event)


@dataclass(slots=True)
class Figures:
    """Usage and timing, summed over the prompts of one HTTP request."""

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    timings: list[Timing] = field(default_factory=list)

    def add(self, event: Started | Finished) -> None:
        if isinstance(event, Finished):
            self.num_prompt_tokens += event.usage.num_prompt_tokens
            self.num_completion_tokens += event.usage.num_completion_tokens
            self.num_cached_tokens += event.usage.num_cached_tokens
            self.timings.append(event.timing)

    @property
    def usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=self.num_completion_tokens,
            num_cached_tokens=self.num_cached_tokens,
        )

    @property
    def slowest(self) -> Timing:
        return max(self.timings, key=lambda timing: timing.e2e_s)


def stop_reason(chunk: TextChunk) -> str | int | None:
    """vLLM's addition: the stop sequence or stop token that ended the answer."""
    return chunk.stop_token_id if chunk.stop_sequence is None else chunk.stop_sequence


def usage_json(usage: Usage) -> Json:
    """`usage`. The cached tokens are always told, 0 when there were none."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def metrics_json(figures: Figures) -> Json:
    """`metrics`, sent when the client asks for it: seconds of the slowest generation, tokens per second of all."""
    timing = figures.slowest
    busy_s = timing.prefill_s + timing.decode_s
    return {
        "queue_s": timing.queue_s,
        "prefill_s": timing.prefill_s,
        "decode_s": timing.decode_s,
        "time_to_first_token_s": timing.ttft_s,
        "total_s": timing.e2e_s,
        "output_tokens_per_s": figures.num_completion_tokens / busy_s if busy_s > 0 else None,
        "num_preemptions": sum(timing.num_preemptions for timing in figures.timings),
    }


def server_timing(timing: Timing) -> str:
    """The value of a Server-Timing header; browsers' developer tools draw it."""
    parts: Iterable[tuple[str, float]] = (
        ("queue", timing.queue_s),
        ("prefill", timing.prefill_s),
        ("decode", timing.decode_s),
        ("ttft", timing.ttft_s),
        ("total", timing.e2e_s),
    )
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in parts)
