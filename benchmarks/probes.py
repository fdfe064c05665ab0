"""How long health probes take while long prompts are computed: /livez, /readyz and grpc.health of every process.

    python -m benchmarks.probes [--seconds 30] [--json FILE] [-- FLAGS OF octavo serve]

Starts `octavo serve` on free ports, keeps two prompts of 6,000 tokens under way, and probes everything twenty times a
second as an orchestrator does: HTTP over a new connection each time, gRPC over one that stays. A probe that fails, or
whose answer is not "alive" or "ready", ends the run. Compare runs of one machine and one hour only.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.loads import TOKEN_IDS
from benchmarks.serving import Server, free_ports
from octavo import client
from octavo.cli import runtime
from octavo.cli.bench.http_target import HttpTarget

PROMPT_LEN = 6000
PERIOD_S = 0.05  # between two probes of one target
TIMEOUT_S = 5.0

Probe = Callable[[], Awaitable[None]]


async def measure(seconds: float, flags: Sequence[str]) -> dict[str, list[float]]:
    """Seconds that each probe took, by target."""
    first_port = free_ports(2)
    flags = (*flags, f"--port={first_port}", f"--grpc-port={first_port + 1}")
    with tempfile.TemporaryDirectory(prefix="bench") as folder, Server(Path(folder), flags).running() as state:
        async with AsyncExitStack() as exits:
            probes = await _probes(state, exits)
            taken: dict[str, list[float]] = {name: [] for name in probes}
            async with asyncio.TaskGroup() as tasks:
                prefilling = [tasks.create_task(_prefill(state.http_url)) for _ in range(2)]
                await asyncio.sleep(1.0)
                async with asyncio.TaskGroup() as probing:
                    for name, probe in probes.items():
                        probing.create_task(_keep_asking(probe, taken[name], seconds))
                for task in prefilling:
                    task.cancel()
            return taken


async def _probes(state: runtime.ServeState, exits: AsyncExitStack) -> Mapping[str, Probe]:
    addresses = {"gateway": state.grpc_addr, "scheduler": state.scheduler_addr, "kvcache": state.kvcache_addr}
    folder = Path(state.control_socket).parent
    addresses |= {socket.stem: f"unix:{socket}" for socket in sorted(folder.glob("worker-*.sock"))}
    probes: dict[str, Probe] = {
        f"{name} grpc.health": await _health(address, exits) for name, address in addresses.items()
    }
    host, port = state.http_url.removeprefix("http://").split(":")
    for path in ("/livez", "/readyz"):
        probes[f"gateway {path}"] = _http(host, int(port), path)
    return probes


async def _health(address: str, exits: AsyncExitStack) -> Probe:
    channel = await exits.enter_async_context(client.channel(address))
    stub = health_pb2_grpc.HealthStub(channel)

    async def probe() -> None:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, f"{address} says {answer.status}"

    await probe()  # dials
    return probe


def _http(host: str, port: int, path: str) -> Probe:
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()

    async def probe() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            answer = await reader.read()
            writer.close()
        assert answer.split()[1:2] == [b"200"], answer.decode(errors="replace")

    return probe


async def _keep_asking(probe: Probe, taken: list[float], seconds: float) -> None:
    await asyncio.sleep(random.uniform(0, PERIOD_S))
    end_s = time.monotonic() + seconds
    while (asked_s := time.monotonic()) < end_s:
        await probe()
        taken.append(time.monotonic() - asked_s)
        await asyncio.sleep(max(0.0, asked_s + PERIOD_S - time.monotonic()))


async def _prefill(url: str) -> None:
    """One prompt after the other, each new to the server, as long as it is let."""
    target = HttpTarget(url, {}, model=None)
    while True:
        sample = await target.generate(random.choices(TOKEN_IDS, k=PROMPT_LEN), 1)
        assert sample.error is None, sample.error


def _figures(taken: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {"num": len(taken), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "max_ms": max(taken) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="for how long to probe")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("flags", nargs="*", help="of octavo serve, after --")
    arguments = parser.parse_args()
    figures = {
        name: _figures(taken) for name, taken in asyncio.run(measure(arguments.seconds, arguments.flags)).items()
    }
    print(f"{'probe':28}{'number':>8}{'p50':>9}{'p99':>9}{'max':>9}   ms")
    for name, each in figures.items():
        print(f"{name:28}{each['num']:8.0f}{each['p50_ms']:9.1f}{each['p99_ms']:9.1f}{each['max_ms']:9.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
