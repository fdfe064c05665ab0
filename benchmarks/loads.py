"""The loads of docs/performance.md on one server: decode, prefill, shared prefix, mixed. Knows no way to start it.

Prompts are random token ids drawn from a seed, so servers that are asked in the same order get the same prompts, and
every prompt is new to a server. Greedy; the end of sequence is ignored.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.cli.bench import figures, runner
from octavo.cli.bench.figures import Figures, Sample
from octavo.cli.bench.workload import Workload

TOKEN_IDS = range(1000, 40_000)  # ordinary tokens of the demo model
PROMPT_LEN = OUTPUT_LEN = 128
LONG_PROMPT_LEN = 1500
DECODERS = 8
DECODER_OUTPUT_LEN = 256
WARM_UP_LEN = 8  # output tokens
START_LIMIT_S = 60.0  # until all decode


class Target(Protocol):
    """A server that calls `on_text` whenever text of an answer arrives."""

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, *, on_text: Callable[[], None] = lambda: None
    ) -> Sample: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A long prompt that arrived while others decoded; milliseconds."""

    itl_before_ms: float  # median of the decoding requests until it arrived
    itl_max_ms: float
    ttft_ms: float  # of the long prompt
    ttft_alone_ms: float  # of another one as long, when nothing else ran


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """How long the requests took together, and what they were."""

    duration_s: float
    prompts: runner.Prompts


class Loads:
    """Asserts that every request was answered in full."""

    def __init__(self, target: Target, *, seed: int) -> None:
        self._target = target
        self._seed = seed

    async def first_token(self) -> None:
        await self._closed(1, self._prompts(1, 16), 1)

    async def warm_up(self, concurrencies: Sequence[int]) -> None:
        """Every size of batch once, so that what an engine makes for a size it meets first is made."""
        for concurrency in concurrencies:
            await self._closed(concurrency, self._prompts(concurrency, PROMPT_LEN), WARM_UP_LEN)
        await self.prefill()

    async def decode(self, concurrency: int) -> Figures:
        """All at once; their prompts are computed within the time that counts."""
        return await self._closed(concurrency, self._prompts(concurrency, PROMPT_LEN), OUTPUT_LEN)

    async def prefill(self) -> float:
        """TTFT of 1,024 tokens in milliseconds."""
        return _ttft_ms(await self._closed(1, self._prompts(1, 1024), 1))

    async def shared_prefix(self) -> SharedPrefix:
        """32 at once: 768 tokens in common and 32 of their own, 32 out; nobody has seen them before."""
        prompts = self._prompts(32, 800, prefix_len=768)
        summary = await self._closed(32, prompts, 32)
        return SharedPrefix(duration_s=summary.duration_s, prompts=prompts)

    async def again(self, earlier: SharedPrefix) -> float:
        """Seconds for the same requests once more."""
        return (await self._closed(32, earlier.prompts, 32)).duration_s

    async def mixed(self) -> Mixed:
        """8 requests decode 256 tokens; when all of them do, a 1,500-token prompt arrives."""
        alone, late = self._prompts(2, LONG_PROMPT_LEN)
        ttft_alone_ms = _ttft_ms(await self._closed(1, [alone], 1))
        all_decode = _AllDecode(DECODERS)
        async with asyncio.TaskGroup() as tasks:
            decoding = [
                tasks.create_task(self._target.generate(prompt, DECODER_OUTPUT_LEN, on_text=all_decode.counter(number)))
                for number, prompt in enumerate(self._prompts(DECODERS, PROMPT_LEN))
            ]
            async with asyncio.timeout(START_LIMIT_S):
                await all_decode.happened.wait()
            arrived_at = time.perf_counter()
            late_sample = await self._target.generate(late, 16)
        samples = [task.result() for task in decoding]
        _check([late_sample, *samples])
        return Mixed(
            itl_before_ms=statistics.median(gap for sample in samples for gap in _gaps_until(sample, arrived_at)),
            itl_max_ms=max(gap for sample in samples for gap in sample.itls_ms),
            ttft_ms=late_sample.ttft_ms,
            ttft_alone_ms=ttft_alone_ms,
        )

    def _prompts(self, num_prompts: int, input_len: int, *, prefix_len: int = 0) -> list[list[int]]:
        self._seed += 1
        workload = Workload(num_prompts=num_prompts, input_len=input_len, prefix_len=prefix_len, seed=self._seed)
        return workload.prompts(TOKEN_IDS)

    async def _closed(self, concurrency: int, prompts: runner.Prompts, num_tokens: int) -> Figures:
        started_at = time.perf_counter()
        samples = await runner.closed_loop(
            self._target, prompts, num_tokens=num_tokens, concurrency=concurrency, on_done=lambda: None
        )
        summary = figures.summarize(samples, duration_s=time.perf_counter() - started_at)
        _check(samples)
        assert summary.num_output_tokens == num_tokens * len(prompts), "the end of sequence was not ignored"
        return summary


class _AllDecode:
    """Happens when every one of so many answers has had a tenth of its text."""

    def __init__(self, num_answers: int) -> None:
        self.happened = asyncio.Event()
        self._missing = dict.fromkeys(range(num_answers), DECODER_OUTPUT_LEN // 10)

    def counter(self, number: int) -> Callable[[], None]:
        """To be called for each text of the answer with this number."""

        def count() -> None:
            if self._missing.get(number, 0) > 1:
                self._missing[number] -= 1
            elif self._missing.pop(number, None) is not None and not self._missing:
                self.happened.set()

        return count


def _check(samples: Sequence[Sample]) -> None:
    failed = [sample.error for sample in samples if sample.error]
    assert not failed, failed


def _ttft_ms(summary: Figures) -> float:
    assert summary.ttft_ms is not None
    return summary.ttft_ms.median


def _gaps_until(sample: Sample, moment: float) -> list[float]:
    moments = sample.arrived_at
    return [1e3 * (after - before) for before, after in itertools.pairwise(moments) if after < moment]
