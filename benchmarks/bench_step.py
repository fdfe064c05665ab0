"""Steps of the worker's runner alone, without other processes, beside what the machine allows.

    python -m benchmarks.bench_step [MODEL] [--dtype stored bfloat16] [--num-threads 1 2] [--num-requests 1 8 32]
        [--context 128 1024 4096] [--prefill 128 512] [--sampling]

Decode: rows of a context each; prefill: one prompt. "limit" is the longer of reading weights and K/V once and of the
arithmetic of the products at the peak of their type, both measured beside the steps. "around" is what a step takes
outside the forward pass. Medians and bests in ms; compare runs of one machine and one hour only. MODEL is what `octavo
serve` takes; without it the demo model.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.machine_limits import MachineLimits
from gpu_worker.config import Compute, KVMemory, WorkerConfig
from gpu_worker.core.step import Ids, NewRequest, Sampling, Step
from gpu_worker.identity import Identity
from gpu_worker.model_runner import Execution, ModelRunner
from gpu_worker.models.config import ModelConfig, read_model_config
from gpu_worker.startup import start
from gpu_worker.startup_phases import Phases
from octavo import logs, model_files

CHUNK = 512  # tokens of a step while contexts are filled
NUM_STEPS = 40
NUM_PREFILLS = 6
WARM_UP_STEPS = 3
READ_BYTES = 512 << 20  # to measure how fast memory is read
BLOCK_SIZE = 16
SAMPLINGS = {
    "greedy": Sampling(),
    "t=1 all": Sampling(temperature=1.0, seed=1),
    "t=.7 p=.9": Sampling(temperature=0.7, top_p=0.9, seed=1),
}


@dataclass(slots=True)
class Driver:
    """Stands where the scheduler would: hands out blocks and numbers, one request after the other."""

    runner: ModelRunner
    seq: int = 0
    next_block: int = 1

    def fill(self, handles: Sequence[int], num_tokens: int, *, room: int, sampling: Sampling) -> None:
        """Requests of `num_tokens` random tokens each, computed in chunks, with blocks for `room` more."""
        for handle in handles:
            self.prefill(handle, num_tokens, room=room, sampling=sampling, first=min(CHUNK, num_tokens))
            for computed in range(CHUNK, num_tokens, CHUNK):
                self._step(handles=_packed([handle]), num_scheduled_tokens=_packed([min(CHUNK, num_tokens - computed)]))

    def prefill(
        self, handle: int, num_tokens: int, *, room: int = 0, sampling: Sampling | None = None, first: int | None = None
    ) -> Execution:
        num_blocks = -(-(num_tokens + room) // BLOCK_SIZE)
        blocks = np.arange(self.next_block, self.next_block + num_blocks, dtype=np.uint32)
        self.next_block += num_blocks
        new = NewRequest(
            handle=handle,
            request_id=str(handle),
            epoch=0,
            token_ids=np.random.default_rng(handle).integers(10, 400, num_tokens).astype(np.uint32),
            num_prompt_tokens=num_tokens,
            block_ids=blocks,
            num_computed_tokens=0,
            sampling=sampling or Sampling(),
        )
        counts = _packed([first or num_tokens])
        return self._step(handles=_packed([handle]), num_scheduled_tokens=counts, new_requests=(new,))

    def decode(self, handles: Sequence[int], num_steps: int) -> list[Execution]:
        return [self._step(handles=_packed(handles)), *(self._step() for _ in range(num_steps - 1))]

    def release_all(self) -> None:
        self.runner.state.reset()
        self.next_block = 1

    def _step(
        self,
        *,
        handles: Ids | None = None,
        num_scheduled_tokens: Ids | None = None,
        new_requests: tuple[NewRequest, ...] = (),
    ) -> Execution:
        self.seq += 1
        nothing = _packed([])
        step = Step(
            session=1,
            step=self.seq,
            seq=self.seq,
            acked_seq=self.seq - 1,
            released_handles=nothing,
            new_requests=new_requests,
            handles=nothing if handles is None else handles,
            num_scheduled_tokens=nothing if num_scheduled_tokens is None else num_scheduled_tokens,
            new_block_rows=nothing,
            num_new_blocks=nothing,
            new_block_ids=nothing,
        )
        return self.runner.execute(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The shortest time that this machine could need for a step."""

    model: ModelConfig
    weight_bytes: int
    kv_token_bytes: float
    read_bytes_per_s: float
    operations_per_s: float

    def step_ms(self, *, num_tokens: int, num_sampled: int, context_tokens: int) -> float:
        reading = (self.weight_bytes + self.kv_token_bytes * context_tokens) / self.read_bytes_per_s
        return 1e3 * max(reading, self._operations(num_tokens, num_sampled) / self.operations_per_s)

    def _operations(self, num_tokens: int, num_sampled: int) -> int:
        """Of the products with weights."""
        model = self.model
        heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
        layer = model.hidden_size * (heads * model.head_dim + 3 * model.intermediate_size)
        head = model.hidden_size * model.vocab_size
        return 2 * (num_tokens * layer * model.num_hidden_layers + num_sampled * head)


def main() -> None:
    arguments = _arguments()
    logs.configure("bench", log_format="text", level="warning")
    for num_threads in arguments.num_threads:
        limits = MachineLimits(num_threads)
        memory = np.ones(READ_BYTES // 8)
        read, peaks = limits.read_bytes_per_s(memory), {"int8": limits.int8_per_s(), "bf16": limits.bf16_per_s()}
        del memory
        print(
            f"{num_threads} threads: {read / 1e9:.0f} GB/s, {peaks['bf16'] / 1e12:.2f} TFLOP/s bf16, "
            f"{peaks['int8'] / 1e12:.2f} TOP/s int8"
        )
        for dtype in arguments.dtype:
            _bench(arguments, dtype, num_threads, read=read, peaks=peaks)


def _bench(
    arguments: argparse.Namespace, dtype: str, num_threads: int, *, read: float, peaks: dict[str, float]
) -> None:
    files = model_files.resolve(arguments.model)
    most = max(arguments.num_requests) * (-(-(max(arguments.context) + 2 * NUM_STEPS) // BLOCK_SIZE) + 1)
    config = WorkerConfig(
        compute=Compute(dtype=dtype, num_threads=num_threads, max_num_batched_tokens=4096),  # type: ignore[arg-type]
        kv_memory=KVMemory(num_blocks=max(most, max(arguments.prefill) // BLOCK_SIZE * NUM_PREFILLS * 2) + 2),
    )
    phases = Phases()
    ready = start(config, files, phases)
    print(f"{dtype}: {ready.identity.attention_backend}, {ready.identity.dtype}, start {phases.seconds}")
    limits = _limits(read_model_config(files.config_dir / "config.json"), ready.identity, read=read, peaks=peaks)
    driver = Driver(ready.runner)
    samplings = SAMPLINGS if arguments.sampling else {"greedy": SAMPLINGS["greedy"]}
    for num_requests in arguments.num_requests:
        for context in arguments.context:
            for name, sampling in samplings.items():
                steps = _decode(driver, num_requests, context, sampling)
                tokens = num_requests * (context + WARM_UP_STEPS + NUM_STEPS // 2)
                limit_ms = limits.step_ms(num_tokens=num_requests, num_sampled=num_requests, context_tokens=tokens)
                _print(f"decode {num_requests:3} x {context:5} {name}", steps, limit_ms)
    for num_tokens in arguments.prefill:
        driver.release_all()
        steps = [driver.prefill(handle, num_tokens) for handle in range(NUM_PREFILLS)]
        limit_ms = limits.step_ms(num_tokens=num_tokens, num_sampled=1, context_tokens=num_tokens)
        _print(f"prefill {num_tokens:5}", steps[1:], limit_ms)


def _decode(driver: Driver, num_requests: int, context: int, sampling: Sampling) -> list[Execution]:
    driver.release_all()
    handles = range(1, num_requests + 1)
    driver.fill(handles, context, room=2 * NUM_STEPS, sampling=sampling)
    driver.decode(handles, WARM_UP_STEPS)
    return driver.decode(handles, NUM_STEPS)


def _limits(model: ModelConfig, identity: Identity, *, read: float, peaks: dict[str, float]) -> Limits:
    return Limits(
        model=model,
        weight_bytes=identity.weight_bytes,
        kv_token_bytes=identity.kv_cache_bytes / identity.num_blocks / BLOCK_SIZE,
        read_bytes_per_s=read,
        operations_per_s=peaks["int8" if identity.dtype == "stored" else "bf16"],
    )


def _print(name: str, executions: Sequence[Execution], limit_ms: float) -> None:
    steps = [(execution.sampled_ns - execution.started_ns) / 1e6 for execution in executions]
    forwards = [(execution.forwarded_ns - execution.prepared_ns) / 1e6 for execution in executions]
    around = statistics.median(step - forward for step, forward in zip(steps, forwards, strict=True))
    median, best = statistics.median(steps), min(steps)
    rate = executions[0].num_tokens / median * 1e3
    print(
        f"  {name:28} step {median:8.2f} best {best:8.2f}   forward {min(forwards):8.2f} limit {limit_ms:8.2f} "
        f"({limit_ms / min(forwards):4.0%})   around {around:5.2f}   {rate:7.0f} tok/s",
        flush=True,
    )


def _packed(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.uint32)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--dtype", nargs="+", default=["auto"], choices=["auto", "stored", "bfloat16", "float32"])
    parser.add_argument("--num-threads", type=int, nargs="+", default=[2])
    parser.add_argument("--num-requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--prefill", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--sampling", action="store_true", help="also requests that are not greedy")
    return parser.parse_args()


if __name__ == "__main__":
    main()
