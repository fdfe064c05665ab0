"""The loads, on a server that answers from a script."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from benchmarks.loads import DECODER_OUTPUT_LEN, Loads
from octavo.cli.bench.figures import Sample


class ScriptedServer:
    """A token every millisecond; notes what it is asked and how much of it ran together."""

    def __init__(self, *, stops_early: bool = False) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.most_at_once = 0
        self.arrived_while: int | None = None  # requests that were open when the one before the last came
        self._num_open = 0
        self._stops_early = stops_early

    async def generate(
        self, prompt: Sequence[int], num_tokens: int, *, on_text: Callable[[], None] = lambda: None
    ) -> Sample:
        self.prompts.append(tuple(prompt))
        self._num_open += 1
        self.most_at_once = max(self.most_at_once, self._num_open)
        self.arrived_while = self._num_open - 1
        sample = Sample(sent_at=time.perf_counter(), num_prompt_tokens=len(prompt))
        for _ in range(num_tokens - self._stops_early):
            await asyncio.sleep(0.001)
            sample.arrived_at.append(time.perf_counter())
            sample.num_output_tokens += 1
            on_text()
        self._num_open -= 1
        return sample


async def test_decode_sends_as_many_at_once_as_it_says():
    server = ScriptedServer()
    summary = await Loads(server, seed=1).decode(8)
    assert server.most_at_once == 8
    assert {len(prompt) for prompt in server.prompts} == {128}
    assert summary.num_output_tokens == 8 * 128


async def test_same_seed_gives_every_server_the_same_prompts_and_no_server_one_twice():
    first, second = ScriptedServer(), ScriptedServer()
    for server in (first, second):
        loads = Loads(server, seed=7)
        await loads.warm_up([1, 2])
        await loads.prefill()
    assert first.prompts == second.prompts
    assert len(set(first.prompts)) == len(first.prompts)


async def test_shared_prefix_is_shared_by_all_and_repeated_again():
    server = ScriptedServer()
    loads = Loads(server, seed=3)
    await loads.again(await loads.shared_prefix())
    assert len({prompt[:768] for prompt in server.prompts}) == 1
    assert len({prompt[768:] for prompt in server.prompts}) == 32
    assert sorted(server.prompts[:32]) == sorted(server.prompts[32:])


async def test_long_prompt_arrives_while_all_eight_decode():
    server = ScriptedServer()
    mixed = await Loads(server, seed=5).mixed()
    alone, *decoding, late = server.prompts
    assert [len(alone), len(late)] == [1500, 1500]
    assert alone != late
    assert len(decoding) == 8
    assert server.arrived_while == 8
    assert 0 < mixed.itl_before_ms <= mixed.itl_max_ms < DECODER_OUTPUT_LEN
    assert mixed.ttft_ms > 0 < mixed.ttft_alone_ms


async def test_answer_that_ends_early_is_no_measurement():
    with pytest.raises(AssertionError, match="end of sequence"):
        await Loads(ScriptedServer(stops_early=True), seed=1).prefill()
