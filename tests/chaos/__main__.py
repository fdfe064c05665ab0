"""The program: random faults under load, one line each; exit status 1 if anything was lost, doubled or changed.

python -m tests.chaos --minutes 60 --seed 7 --log chaos.log
"""

import argparse
import asyncio
import itertools
import logging
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from tests.chaos import campaign
from tests.chaos.account import Account
from tests.chaos.campaign import Campaign, Round
from tests.chaos.faults import Fault, draw, draw_other

DEFAULT_MINUTES = 5
LONGEST_CALM_S = 3.0  # load without a fault before the next one, so that each comes at a random moment
QUIET_EVERY = 10  # rounds, then everything is let end and looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says."""

    seed: int
    minutes: float | None  # None: until `faults` are done
    first: int
    faults: int | None
    two_faults: bool
    processes_only: bool
    streams: int
    requests: int
    workers: int
    log: Path | None

    def replay(self, number: int) -> str:
        """The command that does round `number` again."""
        numbers = f"--seed {self.seed} --first {number} --faults 1"
        chosen = " --two-faults" * self.two_faults + " --processes-only" * self.processes_only
        size = f"--streams {self.streams} --requests {self.requests} --workers {self.workers}"
        return f"python -m tests.chaos {numbers}{chosen} {size}"


class Report:
    """Lines to the terminal, and to a file if one was named."""

    def __init__(self, log: TextIO | None) -> None:
        self._log = log

    def say(self, line: str) -> None:
        for stream in (sys.stdout, self._log):
            if stream is not None:
                print(line, file=stream, flush=True)


def main() -> int:
    settings = _settings()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if settings.log is None:
        return asyncio.run(run(settings, Report(None)))
    with settings.log.open("w") as log:
        return asyncio.run(run(settings, Report(log)))


async def run(settings: Settings, report: Report) -> int:
    """All of it; the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-chaos-"))
    report.say(f"seed {settings.seed}; logs of the processes in {folder}")
    account = Account()
    async with campaign.started(
        folder,
        seed=settings.seed,
        num_streams=settings.streams,
        num_requests=settings.requests,
        num_workers=settings.workers,
    ) as running:
        report.say(f"{settings.requests} requests answered undisturbed; {settings.streams} streams under way")
        await _rounds(settings, running, account, report)
    for line in account.table():
        report.say(line)
    if account.num_failed:
        return 1
    shutil.rmtree(folder)
    return 0


async def _rounds(settings: Settings, running: Campaign, account: Account, report: Report) -> None:
    begun_s = time.monotonic()
    for number in _numbers(settings):
        await asyncio.sleep(random.Random(f"{settings.seed}/{number}/calm").uniform(0, LONGEST_CALM_S))
        at_s = time.monotonic() - begun_s
        done = await running.provoke(_faults(settings, number))
        account.add(done)
        report.say(_line(settings.seed, number, at_s, done))
        is_last = time.monotonic() - begun_s > _limit_s(settings) or number + 1 == _end(settings)
        left = await running.quiet() if is_last or number % QUIET_EVERY == QUIET_EVERY - 1 else []
        account.add_left(left)
        for complaint in (*done.complaints, *(f"after quiet: {problem}" for problem in left)):
            report.say(f"      FAILED {complaint}")
        if done.complaints or left:
            report.say(f"      again: {settings.replay(number)}")
        if is_last or not done.is_ready:
            return


def _limit_s(settings: Settings) -> float:
    if settings.minutes is None:
        return DEFAULT_MINUTES * 60 if settings.faults is None else math.inf
    return settings.minutes * 60


def _numbers(settings: Settings) -> Iterator[int]:
    end = _end(settings)
    yield from itertools.count(settings.first) if end is None else range(settings.first, end)


def _end(settings: Settings) -> int | None:
    return None if settings.faults is None else settings.first + settings.faults


def _faults(settings: Settings, number: int) -> Sequence[Fault]:
    targets = campaign.targets(settings.workers)
    if settings.processes_only:
        targets = replace(targets, links=(), message_links=())
    first = draw(targets, seed=settings.seed, number=number)
    if not settings.two_faults:
        return [first]
    return [first, draw_other(targets, first, seed=settings.seed, number=number)]


def _line(seed: int, number: int, at_s: float, done: Round) -> str:
    what = " + ".join(str(fault) for fault in done.faults)
    verdict = "FAILED" if done.complaints else "exact"
    return (
        f"{int(at_s // 60):3d}:{at_s % 60:04.1f}  seed {seed} #{number:<4d} {what:40s} "
        f"worst pause {done.worst_pause_s:5.2f} s  {done.num_streams:3d} streams  "
        f"ready after {done.ready_after_s:5.2f} s  {done.num_outcomes:3d} answers {verdict}"
    )


def _settings() -> Settings:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help=f"how long; else {DEFAULT_MINUTES}, or until all of --faults are done"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides requests and faults")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--faults", type=int, help="so many rounds")
    parser.add_argument("--two-faults", action="store_true", help="two faults of different targets 2 s apart each time")
    parser.add_argument("--processes-only", action="store_true", help="nothing is done to connections")
    parser.add_argument("--streams", type=int, default=32, help="clients that ask at the same time")
    parser.add_argument("--requests", type=int, default=300, help="distinct requests")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--log", type=Path, help="a file that gets all lines too")
    return Settings(**vars(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
