"""The story that the three layers exist for: a shared prefix, a fork, and a long prompt that must not stop the others.

A = shared prefix + question 1; B = the same prefix + question 2; C = the same prefix + long evidence + question 3.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from octavo.kvcache.v1 import kvcache_pb2 as kv
from tests.e2e.stack import Answer, Stack, collect, greedy

BLOCK = 16
NUM_SHARED = 6 * BLOCK
QUESTION_A, QUESTION_B, QUESTION_C = (list(range(start, start + 20)) for start in (3000, 4000, 5000))
EVIDENCE = list(range(6000, 6800))
BUDGET = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The three answers, and the pool at the moment when C's first token came."""

    a: Answer
    b: Answer
    c: Answer
    figures: kv.PoolFigures
    c_submitted_s: float

    def tokens_during_prefill_of_c(self, answer: Answer) -> int:
        return sum(self.c_submitted_s < at_s < self.c.arrivals_s[0] for at_s in answer.arrivals_s)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    flags = ("--max-num-batched-tokens", str(BUDGET), "--num-blocks", "160")
    with Stack(tmp_path_factory.mktemp("story"), *flags) as running:
        yield running


def test_a_shared_prefix_is_computed_once_and_a_long_prompt_does_not_stop_the_others(stack: Stack) -> None:
    story = asyncio.run(tell(stack, prefix(1000)))
    # B starts at the fork; C hits the shared part only, and starts there.
    cached = [answer.num_cached_tokens for answer in (story.a, story.b, story.c)]
    assert cached == [0, NUM_SHARED, NUM_SHARED]
    # C's evidence is cut into chunks of what the budget leaves; in each of these steps A and B advance.
    for answer in (story.a, story.b):
        assert story.tokens_during_prefill_of_c(answer) >= len(EVIDENCE) // BUDGET
    # The three tables hold the shared blocks once.
    unshared = sum(
        num_blocks(NUM_SHARED + len(question) + sum(at_s <= story.c.arrivals_s[0] for at_s in answer.arrivals_s))
        for question, answer in (
            (QUESTION_A, story.a),
            (QUESTION_B, story.b),
            (EVIDENCE + QUESTION_C, story.c),
        )
    )
    shared_once = unshared - 2 * num_blocks(NUM_SHARED)
    assert abs(story.figures.num_held - shared_once) <= 3  # a block of each may be on its way


@pytest.mark.slow
def test_after_the_end_the_shared_blocks_stay_and_the_least_recently_used_go_first(stack: Stack) -> None:
    shared = prefix(20_000)
    asyncio.run(tell(stack, shared))
    figures = stack.pool_figures()
    assert figures.num_held == 0
    assert cached_of(stack, shared + QUESTION_B) == NUM_SHARED + BLOCK  # B's own block, and a use of the shared ones
    # A prompt that takes all free blocks but the ten used last: what only A had goes, what B used again stays.
    stack.generate([[9000 + i % 700 for i in range((figures.num_free - 10) * BLOCK)]], max_tokens=1)
    assert cached_of(stack, shared + QUESTION_A) == NUM_SHARED
    assert cached_of(stack, shared + QUESTION_B) == NUM_SHARED + BLOCK


async def tell(stack: Stack, shared: list[int]) -> Story:
    """A, then B, then C while both decode."""
    async with grpc.aio.insecure_channel(stack.target) as channel:
        a = await decoding(channel, shared + QUESTION_A)  # its blocks are written before B comes
        b = await decoding(channel, shared + QUESTION_B)
        submitted_s = asyncio.get_running_loop().time()
        first_token = asyncio.Event()
        request = greedy(shared + EVIDENCE + QUESTION_C, max_tokens=30)
        c = asyncio.create_task(collect(channel, request, on_first_token=first_token.set))
        await first_token.wait()
        figures = await asyncio.to_thread(stack.pool_figures)
        assert not a.done(), "A ended before C had its first token"
        assert not b.done(), "B ended before C had its first token"
        return Story(a=await a, b=await b, c=await c, figures=figures, c_submitted_s=submitted_s)


async def decoding(channel: grpc.aio.Channel, prompt: list[int]) -> "asyncio.Task[Answer]":
    """A request that has its first token."""
    first_token = asyncio.Event()
    request = greedy(prompt, max_tokens=200)
    task = asyncio.create_task(collect(channel, request, on_first_token=first_token.set))
    await first_token.wait()
    return task


def prefix(first: int) -> list[int]:
    """System prompt and tools, of a story of its own."""
    return list(range(first, first + NUM_SHARED))


def cached_of(stack: Stack, prompt: list[int]) -> int:
    return stack.generate([[*prompt, 1]], max_tokens=1)[0].num_cached_tokens


def num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK)
