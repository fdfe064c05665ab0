"""Memory, open files and threads of every process over time, and whether they grow. A restart begins a new life."""

import asyncio
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]

SAMPLE_EVERY_S = 0.25
NUM_WINDOWS = 3  # of a life's judged part: the medians of the first and the last are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process at one moment, `num_done` requests after the start."""

    num_done: int
    rss_bytes: int
    num_files: int
    num_threads: int


@dataclass(slots=True)
class Life:
    """A process from its start to its end."""

    pid: int
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory of a life's judged part."""

    name: str
    num_requests: int
    first_bytes: float
    last_bytes: float

    @property
    def share(self) -> float:
        return self.last_bytes / self.first_bytes - 1

    @property
    def bytes_per_request(self) -> float:
        return (self.last_bytes - self.first_bytes) / max(1, self.num_requests)


class Sampler:
    """Looks at every process from time to time. What is asked for is told by name."""

    def __init__(self, pids: Callable[[], Mapping[str, int]], num_done: Callable[[], int]) -> None:
        self._pids = pids
        self._num_done = num_done
        self.lives: dict[str, list[Life]] = {}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_EVERY_S)

    def look(self) -> None:
        """Take one sample of each process that is alive."""
        for name, pid in self._pids().items():
            lives = self.lives.setdefault(name, [])
            if not lives or lives[-1].pid != pid:
                lives.append(Life(pid))
            try:
                lives[-1].samples.append(sample(pid, self._num_done()))
            except psutil.NoSuchProcess:
                continue  # it was killed meanwhile

    def latest(self) -> dict[str, Sample]:
        return {name: lives[-1].samples[-1] for name, lives in self.lives.items() if lives[-1].samples}

    def growths(self, *, since: int, warm_up: int) -> list[Growth]:
        """Of every process' last life, from request `since` on, and `warm_up` requests after its start."""
        return [
            found
            for name, lives in self.lives.items()
            if (found := growth(name, lives[-1], since=since, warm_up=warm_up))
        ]


def sample(pid: int, num_done: int) -> Sample:
    process = psutil.Process(pid)
    with process.oneshot():
        return Sample(
            num_done=num_done,
            rss_bytes=process.memory_info().rss,
            num_files=process.num_fds(),
            num_threads=process.num_threads(),
        )


def growth(name: str, life: Life, *, since: int, warm_up: int) -> Growth | None:
    """The medians of the first and the last third are compared; None where there is too little to judge."""
    begin = max(since, life.samples[0].num_done + warm_up)
    judged = [sample for sample in life.samples if sample.num_done >= begin]
    size = len(judged) // NUM_WINDOWS
    if size == 0:
        return None
    return Growth(
        name=name,
        num_requests=judged[-size // 2 - 1].num_done - judged[size // 2].num_done,
        first_bytes=statistics.median(sample.rss_bytes for sample in judged[:size]),
        last_bytes=statistics.median(sample.rss_bytes for sample in judged[-size:]),
    )
