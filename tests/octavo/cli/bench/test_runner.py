"""Closed and open loop against a target that notes what is open."""

import asyncio
from collections.abc import Sequence

from octavo.cli.bench import runner
from octavo.cli.bench.figures import Sample


class Target:
    """Every request takes as long as its first id says, in milliseconds."""

    def __init__(self) -> None:
        self.num_open = 0
        self.most_open = 0
        self.sent: list[int] = []

    async def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        self.sent.append(prompt[1])
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(prompt[0] / 1000)
        self.num_open -= 1
        return Sample(sent_at=0.0, num_output_tokens=num_tokens)

    async def model(self) -> str:
        return "m"

    async def tokenize(self, text: str) -> list[int]:
        return [1]


async def test_closed_loop_keeps_the_concurrency_and_answers_all():
    target, done = Target(), []
    prompts = [[5, number] for number in range(20)]
    samples = await runner.closed_loop(target, prompts, num_tokens=3, concurrency=4, on_done=lambda: done.append(1))
    assert (len(samples), len(done), target.most_open) == (20, 20, 4)
    assert sorted(target.sent) == list(range(20))


async def test_open_loop_sends_whether_or_not_others_are_answered():
    target = Target()
    samples = await runner.open_loop(
        target, [[300, 0], [1, 1], [1, 2]], arrival_times=[0.0, 0.02, 0.04], num_tokens=3, max_concurrency=None,
        on_done=lambda: None,
    )  # fmt: skip
    assert len(samples) == 3
    assert target.sent == [0, 1, 2]
    assert target.most_open >= 2


async def test_open_loop_holds_back_what_is_above_the_limit():
    target = Target()
    await runner.open_loop(
        target, [[50, 0], [1, 1], [1, 2]], arrival_times=[0.0, 0.0, 0.0], num_tokens=3, max_concurrency=1,
        on_done=lambda: None,
    )  # fmt: skip
    assert target.most_open == 1
