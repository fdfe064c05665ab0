"""Steps of the worker's runner alone, without other processes: decode and prefill speed, and where the time goes.

    python -m benchmarks.worker_step [MODEL] [--dtype float32] [--num-threads 1] [--profile]

Prints, per number of requests, the median and best step and its parts; then prefill. Compare runs of one machine and
one hour only. MODEL is what `octavo serve` takes; without it the demo model.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.config import Compute, KVMemory, WorkerConfig
from gpu_worker.core.step import Ids, NewRequest, Sampling, Step
from gpu_worker.model_runner import Execution, ModelRunner
from gpu_worker.startup import start
from gpu_worker.startup_phases import Phases
from octavo import logs, model_files

PROMPT_TOKENS = 128
NUM_STEPS = 40


@dataclass(slots=True)
class Driver:
    """Stands where the scheduler would: hands out blocks and numbers, one request after the other."""

    runner: ModelRunner
    block_size: int
    seq: int = 0
    next_block: int = 1

    def prefill(self, handles: Sequence[int], num_tokens: int, room: int, sampling: Sampling) -> list[Execution]:
        """One step per request of `num_tokens` random tokens, with blocks for `room` more."""
        return [self._prefill_one(handle, num_tokens, room, sampling) for handle in handles]

    def decode(self, handles: Sequence[int], num_steps: int) -> list[Execution]:
        self.seq += 1
        first = self.runner.execute(_step(self.seq, handles=_packed(handles)))
        return [first, *(self._again() for _ in range(num_steps - 1))]

    def release_all(self) -> None:
        self.runner.state.reset()
        self.next_block = 1

    def _again(self) -> Execution:
        self.seq += 1
        return self.runner.execute(_step(self.seq))

    def _prefill_one(self, handle: int, num_tokens: int, room: int, sampling: Sampling) -> Execution:
        self.seq += 1
        num_blocks = -(-(num_tokens + room) // self.block_size)
        blocks = np.arange(self.next_block, self.next_block + num_blocks, dtype=np.uint32)
        self.next_block += num_blocks
        tokens = np.random.default_rng(handle).integers(10, 400, num_tokens).astype(np.uint32)
        new = NewRequest(
            handle=handle,
            request_id=str(handle),
            epoch=0,
            token_ids=tokens,
            num_prompt_tokens=num_tokens,
            block_ids=blocks,
            num_computed_tokens=0,
            sampling=sampling,
        )
        counts = _packed([num_tokens])
        return self.runner.execute(
            _step(self.seq, handles=_packed([handle]), num_scheduled_tokens=counts, new_requests=(new,))
        )


def main() -> None:
    arguments = _arguments()
    logs.configure("bench", log_format="text")
    files = model_files.resolve(arguments.model)
    config = WorkerConfig(
        compute=Compute(dtype=arguments.dtype, num_threads=arguments.num_threads, max_num_batched_tokens=2048),
        kv_memory=KVMemory(num_blocks=2048),
    )
    phases = Phases()
    runner = start(config, files, phases).runner
    print(f"start: {phases.seconds}")
    driver = Driver(runner, config.kv_memory.block_size)
    for num_requests in arguments.num_requests:
        for name, sampling in _SAMPLINGS.items():
            driver.release_all()
            handles = range(1, num_requests + 1)
            driver.prefill(handles, PROMPT_TOKENS, NUM_STEPS + 8, sampling)
            driver.decode(handles, 3)
            _print(f"decode {num_requests:3d} {name}", driver.decode(handles, NUM_STEPS))
    for num_tokens in (128, 512, 1024):
        driver.release_all()
        driver.prefill([1], num_tokens, 0, Sampling())
        _print(f"prefill {num_tokens:4d}", driver.prefill(range(2, 5), num_tokens, 0, Sampling()))
    if arguments.profile:
        _profile(driver, arguments.num_requests[-1])


_SAMPLINGS = {
    "greedy": Sampling(),
    "t=1 all": Sampling(temperature=1.0, seed=1),
    "t=.7 p=.9": Sampling(temperature=0.7, top_p=0.9, seed=1),
}


def _print(name: str, executions: list[Execution]) -> None:
    """Milliseconds: median (and best) of the whole step, medians of its parts; tokens a second of the median."""

    def parts(execution: Execution) -> tuple[int, int, int]:
        return (
            execution.prepared_ns - execution.started_ns,
            execution.forwarded_ns - execution.prepared_ns,
            execution.sampled_ns - execution.forwarded_ns,
        )

    times = [execution.sampled_ns - execution.started_ns for execution in executions]
    prepare, forward, sample = (statistics.median(part) / 1e6 for part in zip(*map(parts, executions), strict=True))
    median = statistics.median(times) / 1e6
    rate = executions[0].num_tokens / median * 1e3
    print(
        f"{name:22} step {median:8.2f} (best {min(times) / 1e6:8.2f}) ms   prepare {prepare:5.2f} "
        f"forward {forward:8.2f} sample {sample:5.2f}   {rate:7.0f} tok/s",
        flush=True,
    )


def _profile(driver: Driver, num_requests: int) -> None:
    driver.release_all()
    handles = range(1, num_requests + 1)
    driver.prefill(handles, PROMPT_TOKENS, NUM_STEPS, Sampling())
    driver.decode(handles, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        driver.decode(handles, 10)
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


def _packed(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.uint32)


def _step(
    seq: int,
    *,
    handles: Ids | None = None,
    num_scheduled_tokens: Ids | None = None,
    new_requests: tuple[NewRequest, ...] = (),
) -> Step:
    nothing = _packed([])
    return Step(
        session=1,
        step=seq,
        seq=seq,
        acked_seq=seq - 1,
        released_handles=nothing,
        new_requests=new_requests,
        handles=nothing if handles is None else handles,
        num_scheduled_tokens=nothing if num_scheduled_tokens is None else num_scheduled_tokens,
        new_block_rows=nothing,
        num_new_blocks=nothing,
        new_block_ids=nothing,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--num-requests", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--profile", action="store_true", help="show which torch operations the time goes to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
