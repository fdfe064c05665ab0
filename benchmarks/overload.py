"""Four times what can be served, for two minutes: how long do those wait who are let in, and what are the others told?

    python -m benchmarks.overload [--bound 4] [--factor 4] [--seconds 120] [-- FLAGS OF octavo serve]

Starts `octavo serve --max-queue-wait-s BOUND --max-num-seqs 16`, measures what it can serve with more clients than
places, then sends requests at `factor` times that rate, at random moments, whatever becomes of them. A share of those
that are refused come again, once, at the time that the refusal names. Five seconds after the last a few more are sent.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from octavo.cli.bench.figures import percentile
from octavo.errors import from_rpc_error
from tests.e2e.stack import Stack, collect, greedy

NUM_SLOTS = 16
NUM_PROMPT_TOKENS = 32
MEAN_OUTPUT_TOKENS = 16.5  # from 1 to
MOST_OUTPUT_TOKENS = 32
CALIBRATION_S = 20.0
SETTLE_S = 5.0  # after the load; then everything must be as before
NUM_PROBES = 10
TOKEN_IDS = range(1000, 40_000)  # ordinary tokens of the demo model


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One call. Let in if it has a time to the first token, else refused."""

    num_tokens: int
    ttft_s: float | None = None
    refused_after_s: float | None = None
    retry_after_s: float | None = None


@dataclass(slots=True)
class Counts:
    """Of the load."""

    first: list[Try] = field(default_factory=list)
    again: list[Try] = field(default_factory=list)  # who came back as told
    after_s: list[float] = field(default_factory=list)  # to the first token, when it was over


class Clients:
    """Calls of one server over one connection, each with a prompt of its own."""

    def __init__(self, channel: grpc.aio.Channel, *, seed: int) -> None:
        self._channel = channel
        self._random = random.Random(seed)

    def request(self) -> tuple[list[int], int]:
        """A prompt, and how many tokens to ask for."""
        prompt = self._random.choices(TOKEN_IDS, k=NUM_PROMPT_TOKENS)
        return prompt, self._random.randint(1, MOST_OUTPUT_TOKENS)

    def pause_s(self, rate_per_s: float) -> float:
        return self._random.expovariate(rate_per_s)

    def is_among(self, share: float) -> bool:
        return self._random.random() < share

    async def call(self, prompt: Sequence[int], num_tokens: int) -> Try:
        sent_s = time.perf_counter()
        first_s: list[float] = []
        try:
            request = greedy(prompt, max_tokens=num_tokens)
            await collect(self._channel, request, on_first_token=lambda: first_s.append(time.perf_counter()))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error)
            if failure.reason != "QUEUE_FULL" or failure.retry_after_s is None:
                raise
            after_s = time.perf_counter() - sent_s
            return Try(num_tokens=num_tokens, refused_after_s=after_s, retry_after_s=failure.retry_after_s)
        return Try(num_tokens=num_tokens, ttft_s=first_s[0] - sent_s)


async def capacity(clients: Clients) -> float:
    """Output tokens a second with all places taken and a short queue; the first seconds only warm up."""
    ended: list[tuple[float, int]] = []
    began_s = time.perf_counter()

    async def one() -> None:
        while time.perf_counter() - began_s < CALIBRATION_S + 5:
            prompt, num_tokens = clients.request()
            outcome = await clients.call(prompt, num_tokens)
            if outcome.retry_after_s is not None:
                await asyncio.sleep(outcome.retry_after_s)
            else:
                ended.append((time.perf_counter() - began_s, num_tokens))

    await asyncio.gather(*(one() for _ in range(NUM_SLOTS + 4)))
    return sum(num_tokens for at_s, num_tokens in ended if 5 <= at_s < CALIBRATION_S + 5) / CALIBRATION_S


async def overload(clients: Clients, *, rate_per_s: float, seconds: float, share_back: float) -> Counts:
    """Arrivals for so long, and some when it has been over for `SETTLE_S`; returns when all have ended."""
    counts = Counts()

    async def one() -> None:
        prompt, num_tokens = clients.request()
        outcome = await clients.call(prompt, num_tokens)
        counts.first.append(outcome)
        is_back_in_time = outcome.retry_after_s is not None and time.perf_counter() + outcome.retry_after_s < end_s
        if outcome.retry_after_s is not None and is_back_in_time and clients.is_among(share_back):
            await asyncio.sleep(outcome.retry_after_s)
            counts.again.append(await clients.call(prompt, num_tokens))

    end_s = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as tasks:
        next_s = time.perf_counter()
        while next_s < end_s:
            tasks.create_task(one())
            next_s += clients.pause_s(rate_per_s)
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
        await asyncio.sleep(SETTLE_S)
        counts.after_s = await probe(clients)
    return counts


async def probe(clients: Clients) -> list[float]:
    """Times to the first token of a few requests, two a second."""
    ttfts_s = []
    for _ in range(NUM_PROBES):
        outcome = await clients.call(*clients.request())
        if outcome.ttft_s is None:
            raise SystemExit(f"refused, with nothing else to do: {outcome}")
        ttfts_s.append(outcome.ttft_s)
        await asyncio.sleep(0.5)
    return ttfts_s


def told(counts: Counts, *, bound_s: float, seconds: float, rate_per_s: float) -> Iterator[str]:
    """The figures, one a line."""
    taken = [outcome.ttft_s for outcome in (*counts.first, *counts.again) if outcome.ttft_s is not None]
    refused = [outcome for outcome in (*counts.first, *counts.again) if outcome.refused_after_s is not None]
    num_tokens = sum(outcome.num_tokens for outcome in (*counts.first, *counts.again) if outcome.ttft_s is not None)
    yield f"sent {len(counts.first)} in {seconds:g} s, {rate_per_s:.1f} a second: {len(taken)} let in"
    yield f"served while it lasted: {num_tokens / seconds:.0f} tokens a second"
    yield f"TTFT of those let in: {_spread(taken, 's', 1)}; bound {bound_s:g} s"
    yield f"refusals: {_spread([r.refused_after_s for r in refused if r.refused_after_s is not None], 'ms', 1e3)}"
    yield f"told to come in: {_spread([r.retry_after_s for r in refused if r.retry_after_s is not None], 's', 1)}"
    num_in = sum(outcome.ttft_s is not None for outcome in counts.again)
    yield f"came as told: {len(counts.again)}, let in {num_in} ({100 * num_in / max(1, len(counts.again)):.1f} %)"


def _spread(values: Sequence[float], unit: str, scale: float) -> str:
    scaled = [scale * value for value in values]
    middle, last = statistics.median(scaled), percentile(scaled, 99)
    return f"p50 {middle:.2f} {unit}, p99 {last:.2f} {unit}, max {max(scaled):.2f} {unit}"


async def measure(target: str, *, bound_s: float, factor: float, seconds: float, share_back: float) -> None:
    say: Callable[[str], None] = lambda line: print(line, flush=True)  # noqa: E731
    async with grpc.aio.insecure_channel(target) as channel:
        clients = Clients(channel, seed=random.SystemRandom().randrange(1 << 31))
        say(f"idle: TTFT {_spread(await probe(clients), 's', 1)}")
        tokens_per_s = await capacity(clients)
        rate_per_s = factor * tokens_per_s / MEAN_OUTPUT_TOKENS
        say(f"capacity: {tokens_per_s:.0f} tokens a second, {rate_per_s / factor:.1f} requests")
        await asyncio.sleep(SETTLE_S)
        counts = await overload(clients, rate_per_s=rate_per_s, seconds=seconds, share_back=share_back)
        for line in told(counts, bound_s=bound_s, seconds=seconds, rate_per_s=rate_per_s):
            say(line)
        say(f"{SETTLE_S:g} s after the end: TTFT {_spread(counts.after_s, 's', 1)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", type=float, default=4.0, help="--max-queue-wait-s of the server")
    parser.add_argument("--factor", type=float, default=4.0, help="of what it can serve")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--back", type=float, default=0.3, help="share of the refused that come again as told")
    parser.add_argument("flags", nargs="*", help="of octavo serve, after --")
    asked = parser.parse_args()
    flags = ("--max-queue-wait-s", str(asked.bound), "--max-num-seqs", str(NUM_SLOTS), "--dtype", "auto", *asked.flags)
    with tempfile.TemporaryDirectory(prefix="overload") as folder, Stack(Path(folder), *flags) as stack:
        asyncio.run(
            measure(
                stack.target, bound_s=asked.bound, factor=asked.factor, seconds=asked.seconds, share_back=asked.back
            )
        )


if __name__ == "__main__":
    main()
