"""`octavo bench`: asks the server for a vocabulary, runs each load and reports."""

import asyncio
import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from octavo.cli.bench import cache_counters, figures, options, report, runner
from octavo.cli.bench.cache_counters import CacheCounters
from octavo.cli.bench.figures import Figures, Sample
from octavo.cli.bench.grpc_target import GrpcTarget
from octavo.cli.bench.http_target import HttpTarget
from octavo.cli.bench.options import PROMPTS_OF_OPEN_LOOP, PROMPTS_PER_CLIENT, Options
from octavo.cli.bench.report import Run
from octavo.cli.bench.target import TEXT, Target
from octavo.cli.bench.workload import arrival_times
from octavo.cli.inference_client import InferenceClient
from octavo.cli.server_address import CannotAsk, http_headers, http_url

SEED_STEP = 1000  # between the seeds of two runs: the same prompts again would be found in the cache


def run(argv: Sequence[str]) -> int:
    """0 if every request was answered, 1 if one failed or there is no server."""
    chosen = options.read(argv)
    console = Console()
    try:
        runs = asyncio.run(_measure(chosen, console))
    except (CannotAsk, ValueError) as refused:
        print(f"octavo bench: {refused}", file=sys.stderr)
        return 1
    report.show(runs, console)
    console.print(f"seed {chosen.seed}")
    if chosen.json:
        report.write(chosen.json, dataclasses.asdict(chosen), runs)
    return 0 if all(each.figures.num_failed == 0 for each in runs) else 1


async def _measure(chosen: Options, console: Console) -> list[Run]:
    async with AsyncExitStack() as stack:
        target: Target
        if chosen.target:
            client = await stack.enter_async_context(InferenceClient(chosen.target))
            target = GrpcTarget(client, model=chosen.model)
        else:
            target = HttpTarget(http_url(chosen.url), http_headers(), model=chosen.model)
        console.print(f"{await target.model()}: {chosen.input_len} tokens in, {chosen.output_len} out")
        vocabulary = chosen.token_ids or sorted(set(await target.tokenize(TEXT)))
        bench = _Bench(target, chosen, vocabulary, console)
        await bench.warm_up()
        return [await bench.run(load, index) for index, load in enumerate(chosen.request_rate or chosen.concurrency)]


class _Bench:
    """One server and one set of options; runs one load after another."""

    def __init__(self, target: Target, chosen: Options, vocabulary: Sequence[int], console: Console) -> None:
        self._target = target
        self._options = chosen
        self._vocabulary = vocabulary
        self._console = console
        self._metrics_url = chosen.metrics_url or (None if chosen.target else f"{http_url(chosen.url)}/metrics")

    async def warm_up(self) -> None:
        """Requests that are not counted; the first one also proves that the server answers."""
        workload = self._options.workload(num_prompts=self._options.num_warmups, seed=self._options.seed - 1)
        for prompt in workload.prompts(self._vocabulary):
            sample = await self._target.generate(prompt, self._options.output_len)
            if sample.error is not None:
                raise CannotAsk(f"the warm-up request failed: {sample.error}")

    async def run(self, load: float, index: int) -> Run:
        """One run: `load` requests at once, or per second if a rate was asked for."""
        is_open = bool(self._options.request_rate)
        num_prompts = self._options.num_prompts or (PROMPTS_OF_OPEN_LOOP if is_open else PROMPTS_PER_CLIENT * int(load))
        workload = self._options.workload(num_prompts=num_prompts, seed=self._options.seed + SEED_STEP * index)
        prompts = workload.prompts(self._vocabulary)
        name = f"{load:g} requests/s" if is_open else f"{load:g} at once"
        before = await cache_counters.read(self._metrics_url)
        samples, duration_s = await self._timed(name, prompts, load)
        for error in sorted({sample.error for sample in samples if sample.error}):
            self._console.print(f"{name}: failed: {error}", style="red")
        summary = figures.summarize(samples, duration_s=duration_s, goodput=self._options.goodput)
        after = await cache_counters.read(self._metrics_url)
        return Run(load=name, figures=summary, hit_rate=_hit_rate(before, after, summary))

    async def _timed(self, name: str, prompts: runner.Prompts, load: float) -> tuple[list[Sample], float]:
        columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task(name, total=len(prompts))
            started_at = time.perf_counter()
            samples = await self._send(prompts, load, lambda: progress.advance(bar))
            return samples, time.perf_counter() - started_at

    async def _send(self, prompts: runner.Prompts, load: float, on_done: runner.OnDone) -> list[Sample]:
        chosen = self._options
        num_tokens = chosen.output_len
        if not chosen.request_rate:
            concurrency = int(load)
            return await runner.closed_loop(
                self._target, prompts, num_tokens=num_tokens, concurrency=concurrency, on_done=on_done
            )
        moments = arrival_times(len(prompts), request_rate=load, burstiness=chosen.burstiness, seed=chosen.seed)
        return await runner.open_loop(
            self._target,
            prompts,
            arrival_times=moments,
            num_tokens=num_tokens,
            max_concurrency=chosen.max_concurrency,
            on_done=on_done,
        )


def _hit_rate(before: CacheCounters | None, after: CacheCounters | None, summary: Figures) -> float | None:
    if before is None or after is None:
        return figures.hit_rate(summary.num_cached_tokens, summary.num_prompt_tokens)
    return figures.hit_rate(after.num_hit - before.num_hit, after.num_queried - before.num_queried)
