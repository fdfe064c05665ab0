"""The whole server under the five loads of docs/performance.md: decode, prefill, shared prefix, mixed, and its start.

    python -m benchmarks.serving [--json FILE] [--runs 3] [-- FLAGS OF octavo serve]
    python -m benchmarks.serving --url http://127.0.0.1:8123     a server that runs already, ours or another

Starts `octavo serve` on free ports and ends it. Prompts are random token ids, greedy, the end of sequence is ignored.
Compare runs of one machine and one hour only.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.loads import Loads
from benchmarks.worker_phases import WorkerPhases
from octavo.cli import runtime
from octavo.cli.bench.figures import Figures
from octavo.cli.bench.http_target import HttpTarget

STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure of one load, the median over the runs."""

    name: str
    unit: str
    runs: tuple[float, ...]

    def __str__(self) -> str:
        middle = statistics.median(self.runs)
        spread = 100 * (max(self.runs) - min(self.runs)) / 2 / middle if middle else 0.0
        return f"{self.name:48} {middle:10.2f} {self.unit:6} +-{spread:4.1f} %  {[round(run, 2) for run in self.runs]}"


class Bench:
    """One server, and how often each load is repeated."""

    def __init__(self, url: str, *, num_runs: int, phases: WorkerPhases | None = None) -> None:
        self._loads = Loads(HttpTarget(url, {}, model=None), seed=random.SystemRandom().randrange(1 << 31))
        self._num_runs = num_runs
        self._phases = phases

    async def first_token(self) -> None:
        await self._loads.first_token()

    async def decode(self, concurrency: int) -> list[Result]:
        """128 tokens in, 128 out; the first run only warms up."""
        name, runs = f"decode, {concurrency} at once", []
        for number in range(self._num_runs + 1):
            if number == 1 and self._phases is not None:
                self._phases.restart()
            runs.append(await self._loads.decode(concurrency))
        results = _decoding(name, runs[1:])
        if self._phases is not None:
            results += _sharing(name, self._phases)
        return results

    async def prefill(self) -> list[Result]:
        runs = [await self._loads.prefill() for _ in range(self._num_runs + 1)]
        return [_result("prefill 1024, TTFT", "ms", runs[1:])]

    async def shared_prefix(self) -> list[Result]:
        runs = [await self._loads.shared_prefix() for _ in range(self._num_runs)]
        again_s = await self._loads.again(runs[-1])
        return [
            _result("shared prefix, 32 at once", "s", [run.duration_s for run in runs]),
            _result("shared prefix, the same again", "s", [again_s]),
        ]

    async def mixed(self) -> list[Result]:
        runs = [await self._loads.mixed() for _ in range(self._num_runs)]
        return [
            _result("mixed, ITL before the long prompt p50", "ms", [run.itl_before_ms for run in runs]),
            _result("mixed, ITL max", "ms", [run.itl_max_ms for run in runs]),
            _result("mixed, TTFT of the 1500-token prompt", "ms", [run.ttft_ms for run in runs]),
            _result("mixed, TTFT of such a prompt alone", "ms", [run.ttft_alone_ms for run in runs]),
        ]


def _decoding(name: str, runs: Sequence[Figures]) -> list[Result]:
    return [
        _result(f"{name}, output", "tok/s", [run.output_tokens_per_s for run in runs]),
        _result(f"{name}, TTFT median", "ms", [_median_ttft(run) for run in runs]),
        _result(f"{name}, TPOT mean", "ms", [run.tpot_ms.mean for run in runs if run.tpot_ms]),
        _result(f"{name}, ITL p99", "ms", [run.itl_ms.p99 for run in runs if run.itl_ms]),
        _result(f"{name}, ITL max", "ms", [run.itl_ms.max for run in runs if run.itl_ms]),
    ]


def _sharing(name: str, phases: WorkerPhases) -> list[Result]:
    share = phases.share()
    return [
        _result(f"{name}, worker's step mean", "ms", [share.step_ms]),
        _result(f"{name}, worker's gap mean", "us", [share.gap_us]),
        _result(f"{name}, step outside the model", "%", [100 * share.outside_forward]),
    ]


def _median_ttft(run: Figures) -> float:
    assert run.ttft_ms is not None
    return run.ttft_ms.median


def _result(name: str, unit: str, runs: Sequence[float]) -> Result:
    return Result(name=name, unit=unit, runs=tuple(runs))


class Server:
    """`octavo serve` with a folder of its own; what it says goes to a log file."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.log = folder / "serve.log"
        self._environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self._flags = flags

    @contextmanager
    def running(self) -> Iterator[runtime.ServeState]:
        """Yields where it answers, as soon as it says that it is ready."""
        command = [sys.executable, "-m", "octavo.cli", "serve", *self._flags]
        with self.log.open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environ)
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            print(next((line for line in lines if line.startswith("ready")), "").rstrip())
            (state,) = runtime.running(self._environ)
            yield state
        except ValueError:
            raise SystemExit(f"octavo serve did not start:\n{self.log.read_text()[-3000:]}") from None
        finally:
            process.terminate()
            process.wait(STOP_LIMIT_S)
            process.stdout.close()


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on."""
    while True:
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            first = random.SystemRandom().randrange(20_000, 30_000)
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return first


def memory_mib(pids: Sequence[int]) -> float:
    """Resident memory of all processes together; what they share counts once."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def measure(bench: Bench) -> list[Result]:
    results: list[Result] = []
    for concurrency in (1, 8, 32):
        results += _shown(await bench.decode(concurrency))
    results += _shown(await bench.prefill())
    results += _shown(await bench.shared_prefix())
    return results + _shown(await bench.mixed())


async def measure_own(num_runs: int, flags: Sequence[str]) -> list[Result]:
    """Also the start, the memory, and where the worker's time goes.

    Ports: HTTP, gRPC, then the metrics of scheduler, KV cache service and worker.
    """
    first_port = free_ports(5)
    ports = {"--port": first_port, "--grpc-port": first_port + 1, "--metrics-port": first_port + 2}
    flags = (*flags, *(f"{flag}={port}" for flag, port in ports.items()))
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        started_at = time.perf_counter()
        with Server(Path(folder), flags).running() as state:
            bench = Bench(state.http_url, num_runs=num_runs, phases=WorkerPhases(first_port + 4))
            await bench.first_token()
            results = _shown([_result("start to first token", "s", [time.perf_counter() - started_at])])
            results += await measure(bench)
            results += _shown(
                [_result("memory at the end, PSS", "MiB", [memory_mib([state.pid, *state.pids.values()])])]
            )
            return results


def _shown(results: list[Result]) -> list[Result]:
    for result in results:
        print(result, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="measure this server instead of starting one")
    parser.add_argument("--runs", type=int, default=3, help="how often each load is repeated")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("flags", nargs="*", help="of octavo serve, after --")
    arguments = parser.parse_args()
    if arguments.url:
        results = asyncio.run(measure(Bench(arguments.url, num_runs=arguments.runs)))
    else:
        results = asyncio.run(measure_own(arguments.runs, arguments.flags))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
