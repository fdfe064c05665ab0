"""Octavo against vLLM, llama.cpp's server and OpenVINO GenAI on this machine, one after the other in turn.

    python -m benchmarks.compare FOLDER [--servers octavo llamacpp] [--loads decode-1 prefill] [--rounds 2]

FOLDER is where setup_peers.sh has put the peers. Every server gets the same prompts of random token ids by the same
client: over HTTP, but OpenVINO GenAI, a library without a server, by lines to a process. Greedy; the end of sequence is
ignored. A figure is the median over all turns, with the lowest and the highest.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from benchmarks.compare import rows, running, servers, table, turn
from benchmarks.compare.rows import Load, Row
from benchmarks.compare.running import DidNotStart, Running
from benchmarks.compare.servers import Server
from benchmarks.loads import Loads
from benchmarks.serving import free_ports
from octavo.cli.server_address import CannotAsk

SEED_STEP = 1000  # between the prompts of two rounds


class Comparison:
    """All turns of all servers; what was measured so far survives a server that fails."""

    def __init__(self, chosen: Sequence[Server], options: argparse.Namespace, logs: Path) -> None:
        self._servers = chosen
        self._options = options
        self._logs = logs
        self._sleeping: dict[str, Running] = {}
        self.measured: dict[str, dict[Row, list[float]]] = {server.name: {} for server in chosen}
        self.failures: list[str] = []

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            for number in range(self._options.rounds):
                for server in self._servers:
                    await self._turn(server, number, stack)

    async def _turn(self, server: Server, number: int, stack: AsyncExitStack) -> None:
        started_at = time.perf_counter()
        try:
            if server.name in self._sleeping:
                self._sleeping[server.name].wake()
                await self._measure(self._sleeping[server.name], number)
            elif server.sleeps:
                self._sleeping[server.name] = await stack.enter_async_context(self._started(server))
                await self._measure(self._sleeping[server.name], number)
            else:
                async with self._started(server) as awake:
                    await self._measure(awake, number)
        except* (AssertionError, CannotAsk, DidNotStart, TimeoutError) as failed:
            self.failures.append(f"{server.name}, round {number + 1}: {_words(failed)}")
            print(self.failures[-1], flush=True)
        print(f"{server.name}, round {number + 1}: {time.perf_counter() - started_at:.0f} s", flush=True)

    def _started(self, server: Server) -> AbstractAsyncContextManager[Running]:
        return running.started(server, self._logs / f"{server.name}.log")

    async def _measure(self, awake: Running, number: int) -> None:
        name = awake.server.name
        found = self.measured[name]
        if number == 0 or not awake.server.sleeps:
            found.setdefault(rows.START, []).append(awake.start_s)
        loads = Loads(awake.target, seed=self._options.seed + SEED_STEP * number)
        taken = await turn.take(awake, loads, self._options.loads, num_repeats=self._options.repeats)
        for row, figures in taken.figures.items():
            found.setdefault(row, []).extend(figures)
            print(f"{name:12} {row.name:36} {', '.join(f'{figure:.2f}' for figure in figures)} {row.unit}", flush=True)
        if awake.server.sleeps:
            awake.sleep()


def _words(failed: BaseExceptionGroup[BaseException]) -> str:
    """Of the first of them."""
    first: BaseException = failed
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return f"{type(first).__name__}: {first}"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [server.name for server in servers.known(Path(), first_port=0)]
    parser.add_argument("folder", type=Path, help="of the peers")
    parser.add_argument("--servers", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    loads = [load.value for load in Load]
    parser.add_argument("--loads", nargs="+", choices=loads, default=loads, metavar="LOAD", help=", ".join(loads))
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server")
    parser.add_argument("--repeats", type=int, default=1, help="how often each load is repeated within a turn")
    parser.add_argument("--seed", type=int, help="of the prompts [default: a new one]")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--logs", type=Path, help="keep the servers' logs in this folder")
    options = parser.parse_args()
    options.loads = {Load(name) for name in options.loads}
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    return options


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # a time limit also ends the servers
    known = servers.known(options.folder.resolve(), first_port=free_ports(servers.NUM_PORTS))
    chosen = [server for server in known if server.name in options.servers]
    with tempfile.TemporaryDirectory(prefix="compare") as folder:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        comparison = Comparison(chosen, options, logs.resolve())
        asyncio.run(comparison.run())
    print(f"\n{table.markdown(chosen, comparison.measured)}\n\nseed {options.seed}")
    if options.json:
        figures = {
            name: {f"{row.name}, {row.unit}": runs for row, runs in found.items()}
            for name, found in comparison.measured.items()
        }
        options.json.write_text(json.dumps({"seed": options.seed, "figures": figures}, indent=2) + "\n")
    if comparison.failures:
        raise SystemExit("\n".join(comparison.failures))


if __name__ == "__main__":
    main()
