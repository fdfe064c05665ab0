"""How long streams pause when a process is killed: `octavo serve` under load, SIGKILL, nobody helps.

    python -m benchmarks.pauses [--runs 5] [--streams 8] [-- FLAGS OF octavo serve]

In every run each process of a fresh `octavo serve` is killed once while all streams decode, one process after the
other; then a worker of a second `octavo serve` with two of them. A pause is the time between two events of one stream;
of each kill the longest counts. The load's own longest pause, with nothing killed, stands in the first row. A client
whose gateway dies sends its request again: its pause ends with the first event of the second answer.

Answers are checked: every request ends complete, with as many tokens as were asked for. On a machine with other work
the figures say little.
"""

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from octavo.scheduler.v1 import scheduler_pb2
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.chaos.attempt import Ending, Outcome
from tests.chaos.load import Load
from tests.chaos.requests import Request, Way
from tests.e2e.stack import Stack

NUM_TOKENS = 200
BEFORE_S = 3.0  # of decoding before each kill
AFTER_S = 2.0  # that all streams go on before the next kill
WELL_LIMIT_S = 90.0
SETTLE_LIMIT_S = 120.0
NOBODY = "nothing killed"
# What is killed, and the name of its process: the gateway last, for its clients begin anew.
ONE_WORKER: Mapping[str, str | None] = {
    NOBODY: None,
    "Redis killed": "redis",
    "KV cache service killed": "kvcache",
    "scheduler killed": "scheduler",
    "worker killed, restarted": "worker-0",
    "gateway killed": "gateway",
}
TWO_WORKERS: Mapping[str, str | None] = {"worker killed, another attached": "worker-0"}
TARGETS: Mapping[str, str] = {
    "Redis killed": "as with nothing killed",
    "KV cache service killed": "<= 2 s",
    "scheduler killed": "<= 2 s",
    "worker killed, restarted": "<= 6 s",
    "worker killed, another attached": "<= 1.5 s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What one kill did to the streams that had begun."""

    title: str
    pauses_s: Sequence[float]  # the longest of each stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When something was killed and when all was well again, on the clock of time.monotonic()."""

    title: str
    killed_s: float
    well_s: float
    calm_s: float  # when all streams had gone on for a while


def measure(num_runs: int, num_streams: int, flags: Sequence[str]) -> None:
    """Print each kill as it happens, then the table."""
    kills: list[Kill] = []
    for number in range(num_runs):
        for victims in (ONE_WORKER, TWO_WORKERS):
            for kill in _run(victims, num_streams, flags):
                print(f"run {number}: {kill.title}: {max(kill.pauses_s):.2f} s", flush=True)
                kills.append(kill)
    _print_table(kills)


def _run(victims: Mapping[str, str | None], num_streams: int, flags: Sequence[str]) -> list[Kill]:
    num_workers = 2 if victims is TWO_WORKERS else 1
    dtype = () if "--dtype" in flags else ("--dtype", "auto")
    with (
        tempfile.TemporaryDirectory(prefix="octavo") as folder,
        Stack(Path(folder), "--num-workers", str(num_workers), *dtype, *flags) as stack,
    ):
        return asyncio.run(_killing(stack, victims, num_streams))


async def _killing(stack: Stack, victims: Mapping[str, str | None], num_streams: int) -> list[Kill]:
    moments: list[Moment] = []
    async with Load(stack.url, stack.target, _requests(num_streams), num_streams=num_streams, seed=0) as load:
        load.start()
        for title, name in victims.items():
            await asyncio.sleep(BEFORE_S)
            moment = await _moment(stack, title, name)
            await asyncio.wait_for(_gone_on(load, moment.well_s), WELL_LIMIT_S)
            await asyncio.sleep(AFTER_S)
            moments.append(replace(moment, calm_s=time.monotonic()))
        stuck = await load.settle(SETTLE_LIMIT_S)
        wrong = [*stuck, *(complaint for outcome in load.outcomes for complaint in _wrong(outcome))]
        assert not wrong, f"{stack.log}: " + "; ".join(wrong)
        return [_kill(load, moment) for moment in moments]


async def _moment(stack: Stack, title: str, name: str | None) -> Moment:
    workers = await asyncio.to_thread(_workers, stack)
    killed_s = time.monotonic()
    if name is not None:
        pid = _pids(stack)[name]
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(_until_well, stack, name, pid=pid, workers=workers)
    well_s = time.monotonic()
    return Moment(title=title, killed_s=killed_s, well_s=well_s, calm_s=well_s)


async def _gone_on(load: Load, since_s: float) -> None:
    while not load.has_gone_on(since_s):  # noqa: ASYNC110 - clients record what comes, and wake nobody
        await asyncio.sleep(0.05)


def _until_well(stack: Stack, name: str, *, pid: int, workers: Mapping[str, int]) -> None:
    """Return when `name` runs as another process than `pid`, all `workers` are attached and requests are served."""
    deadline_s = time.monotonic() + WELL_LIMIT_S
    while True:
        assert time.monotonic() < deadline_s, f"{name} was not back after {WELL_LIMIT_S:g} s: {stack.log}"
        time.sleep(0.02)
        attached = _workers(stack)
        is_another = _pids(stack).get(name) not in (None, pid) and attached.get(name, 0) != workers.get(name)
        if is_another and attached.keys() == workers.keys() and stack.is_ready():
            return


def _workers(stack: Stack) -> Mapping[str, int]:
    """Incarnations of the attached workers; nobody while scheduler or KV cache service are away."""
    with grpc.insecure_channel(str(stack.state["scheduler_addr"])) as channel:
        try:
            state = SchedulerServiceStub(channel).GetState(scheduler_pb2.GetStateRequest(), timeout=1)
        except grpc.RpcError:
            return {}
    return {worker.worker_id: worker.incarnation for worker in state.workers} if state.kvcache_connected else {}


def _kill(load: Load, moment: Moment) -> Kill:
    pauses = load.pauses(moment.killed_s, moment.calm_s)
    assert pauses, f"{moment.title}: no stream ran"
    return Kill(title=moment.title, pauses_s=[pause.length_s for pause in pauses])


def _pids(stack: Stack) -> Mapping[str, int]:
    pids = stack.state["pids"]
    assert isinstance(pids, dict)
    return pids


def _requests(num_streams: int) -> list[Request]:
    ways = (Way.HTTP_STREAM, Way.GRPC_STREAM)
    return [
        Request(
            name=f"{number}-{ways[number % 2].value}",
            way=ways[number % 2],
            prompt=f"Chapter {number}. The history of the harbour begins",
            max_tokens=NUM_TOKENS,
        )
        for number in range(4 * num_streams)
    ]


def _wrong(outcome: Outcome) -> Iterator[str]:
    last = outcome.last
    if last.ending is not Ending.COMPLETE:
        yield f"{outcome.request.name}: {last.ending.value} {last.detail}"
    elif len(last.transcript.choices[0].token_ids) != NUM_TOKENS:
        yield f"{outcome.request.name}: {len(last.transcript.choices[0].token_ids)} tokens"
    yield from (f"{outcome.request.name}: {violation}" for violation in last.transcript.violations)


def _print_table(kills: Sequence[Kill]) -> None:
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| killed | target | pause: median of kills | worst | median stream |")
    print("|---|---|---|---|---|")
    for title in (*ONE_WORKER, *TWO_WORKERS):
        of_title = [kill for kill in kills if kill.title == title]
        longest = [max(kill.pauses_s) for kill in of_title]
        every = [pause_s for kill in of_title for pause_s in kill.pauses_s]
        print(
            f"| {title} | {TARGETS.get(title, '')} | {statistics.median(longest):.2f} s | {max(longest):.2f} s "
            f"| {statistics.median(every):.2f} s |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often each process is killed")
    parser.add_argument("--streams", type=int, default=8, help="streams that decode at once")
    parser.add_argument("flags", nargs="*", help="of octavo serve, after --")
    given = parser.parse_args()
    measure(given.runs, given.streams, given.flags)


if __name__ == "__main__":
    main()
