"""The core of the KV cache service alone, without wires: plans, lookups and hashes, in pools of different sizes.

    python -m benchmarks.kv_core [--num-blocks 32768 1000000] [--num-plans 320]

Every pool is full of cached prefixes before anything is measured, so that new blocks evict old ones. Prints per pool
the median (and the best) of each row, the ratio of the last pool to the first, and the memory of a block. Compare runs
of one machine and one hour only.
"""

import argparse
import gc
import multiprocessing
import resource
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.plan import AdmissionStatus, Admits, Commits, Declaration, Frees, Grants, Grows, Plan

T = TypeVar("T")

B = 16
NUM_RUNNING = 256
CONTEXT_TOKENS = 512
PROMPT_TOKENS = 2048
NUM_PREFIXES = 4  # of half a prompt each, shared by the prompts that are admitted
CHAIN_BLOCKS = 8192
VOCABULARY = 150_000
TOKEN_BUDGET = 1 << 20


class Prompts:
    """Distinct prompts, quickly: no two begin with the same ids."""

    def __init__(self) -> None:
        self._num_prompts = 0
        self._noise = array("I", ((index * 2_654_435_761) % VOCABULARY for index in range(CHAIN_BLOCKS * B)))

    def next(self, num_tokens: int) -> "array[int]":
        self._num_prompts += 1
        first = array("I", (self._num_prompts // VOCABULARY, self._num_prompts % VOCABULARY))
        return first + self._noise[: num_tokens - len(first)]


@dataclass(slots=True)
class Driver:
    """Stands where the scheduler would."""

    manager: KVCacheManager
    prompts: Prompts = field(default_factory=Prompts)
    step: int = 0
    num_handles: int = 0
    running: list[int] = field(default_factory=list)
    num_known: dict[int, int] = field(default_factory=dict)  # tokens, of those that run
    ending: list[int] = field(default_factory=list)  # were admitted by the last busy plan

    def fill(self) -> None:
        """Cache distinct prompts until no block is blank."""
        while (num_blank := self.manager.figures.num_blank) > 0:
            self.manager.forget(self.cache(self.prompts.next(min(num_blank, CHAIN_BLOCKS) * B)))

    def cache(self, prompt: "array[int]") -> int:
        """Run a prompt and release it; its number."""
        handle = self._number()
        self._apply(declares=[Declaration(handle=handle, token_ids=prompt)], admits=_admits([handle], len(prompt)))
        self._apply(frees=Frees(handles=[handle], epochs=[0]))
        return handle

    def start(self, num_requests: int) -> None:
        """Requests that decode from now on; one in B of them begins a block in each plan."""
        for index in range(num_requests):
            prompt = self.prompts.next(CONTEXT_TOKENS + index % B)
            handle = self._number()
            self._apply(declares=[Declaration(handle=handle, token_ids=prompt)], admits=_admits([handle], len(prompt)))
            self.running.append(handle)
            self.num_known[handle] = len(prompt)

    def busy_plan(self, prompts: Sequence["array[int]"] = ()) -> Plan:
        """Everybody's last id, a step for everybody, those admitted last time end, and these prompts come."""
        self.step += 1
        ended, self.ending = self.ending, [self._number() for _ in prompts]
        for handle in self.running:
            self.num_known[handle] += 1
        return Plan(
            step=self.step,
            acked_step=self.step - 1,
            commits=Commits(
                handles=array("I", self.running),
                num_acked_tokens=array("I", (self.num_known[handle] - 1 for handle in self.running)),
                num_new_tokens=array("I", [1]) * len(self.running),
                new_token_ids=array("I", [self.step % VOCABULARY]) * len(self.running),
            ),
            frees=Frees(handles=ended, epochs=[0] * len(ended)),
            forgotten_handles=ended,
            declares=[Declaration(handle=h, token_ids=p) for h, p in zip(self.ending, prompts, strict=True)],
            token_budget=TOKEN_BUDGET,
            max_admissions=len(prompts),
            grows=Grows(handles=array("I", self.running)),
            admits=_admits(self.ending, PROMPT_TOKENS),
        )

    def apply(self, plan: Plan) -> Grants:
        grants = self.manager.plan_step(plan)
        assert all(admission.status is AdmissionStatus.ADMITTED for admission in grants.admissions)
        return grants

    def _number(self) -> int:
        self.num_handles += 1
        return self.num_handles

    def _apply(self, **ops: object) -> None:
        self.step += 1
        plan = Plan(step=self.step, acked_step=self.step - 1, token_budget=TOKEN_BUDGET, max_admissions=1)
        self.apply(replace(plan, **ops))  # type: ignore[arg-type]
        self.manager.take_events()


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds."""

    median: float
    best: float


def main() -> None:
    arguments = _arguments()
    rows: dict[str, list[Times]] = {}
    for num_blocks in arguments.num_blocks:
        for name, times in _measure(num_blocks, arguments.num_plans).items():
            rows.setdefault(name, []).append(times)
    print(f"{'ms: median (best)':58}" + "".join(f"{size:>14,} blocks" for size in arguments.num_blocks) + "  ratio")
    for name, row in rows.items():
        cells = "".join(f"{times.median:12.3f} ({times.best:.3f})" for times in row)
        print(f"{name:58}{cells}{row[-1].median / row[0].median:7.2f}")
    for num_blocks in arguments.num_blocks:
        blank, full, used = (size / num_blocks for size in _memory_in_own_process(num_blocks))
        print(
            f"bytes a block, {num_blocks:,} blocks (growth of the resident size of a process): "
            f"{blank:.0f} blank, {full:.0f} all cached, {used:.0f} after two turns of evictions"
        )


def _measure(num_blocks: int, num_plans: int) -> dict[str, Times]:
    driver = Driver(KVCacheManager(num_blocks=num_blocks))
    driver.fill()
    prefixes = [driver.prompts.next(PROMPT_TOKENS // 2) for _ in range(NUM_PREFIXES)]
    for prefix in prefixes:
        driver.cache(prefix)
    driver.start(NUM_RUNNING)
    times: dict[str, list[float]] = {}
    for plans in (_decode_plans(driver), _admission_plans(driver, prefixes), _whole_plans(driver, prefixes)):
        for _, (name, plan) in zip(range(num_plans), plans, strict=False):
            grants, milliseconds = _timed(partial(driver.apply, plan))
            assert len(grants.grow_new_block_ids) == NUM_RUNNING // B
            times.setdefault(name, []).append(milliseconds)
            driver.manager.take_events()
    return {name: Times(statistics.median(row), min(row)) for name, row in (times | _lookups(driver)).items()}


def _decode_plans(driver: Driver) -> Iterator[tuple[str, Plan]]:
    while True:
        yield "plan: 256 commits, 256 grows, 16 take a block", driver.busy_plan()


def _admission_plans(driver: Driver, prefixes: Sequence["array[int]"]) -> Iterator[tuple[str, Plan]]:
    """Commits, releases and declarations come in a plan of their own, which is not measured."""
    while True:
        plan = driver.busy_plan(_half_cached(driver, prefixes))
        driver.apply(replace(plan, grows=Grows(), admits=Admits()))
        driver.step += 1
        ops = Plan(
            step=driver.step,
            acked_step=driver.step - 1,
            token_budget=TOKEN_BUDGET,
            max_admissions=plan.max_admissions,
            grows=plan.grows,
            admits=plan.admits,
        )
        yield "plan: 256 grows, 16 take a block, 2 admissions", ops


def _whole_plans(driver: Driver, prefixes: Sequence["array[int]"]) -> Iterator[tuple[str, Plan]]:
    while True:
        yield (
            "the same with 256 commits, 2 declarations, 2 releases",
            driver.busy_plan(_half_cached(driver, prefixes)),
        )


def _half_cached(driver: Driver, prefixes: Sequence["array[int]"]) -> list["array[int]"]:
    """Two prompts that share their first half with others."""
    rest = PROMPT_TOKENS // 2
    return [prefixes[(driver.step + index) % NUM_PREFIXES] + driver.prompts.next(rest) for index in range(2)]


def _lookups(driver: Driver) -> dict[str, list[float]]:
    prompt = driver.prompts.next(CHAIN_BLOCKS * B + 1)
    manager, request = driver.manager, driver.manager.request(driver.cache(prompt))
    assert len(manager.lookup(prompt, is_committed_only=True)) == CHAIN_BLOCKS
    short = prompt[:PROMPT_TOKENS]
    return {
        "lookup of a declared request, 8,192 blocks": _repeat(lambda: manager.hits(request, len(prompt))),
        "lookup of 131,072 tokens (hashes them, too)": _repeat(lambda: manager.lookup(prompt)),
        "hash of a 2,048-token prompt": _repeat(lambda: manager.prefix_keys(short), times=200),
    }


def _repeat(call: Callable[[], object], *, times: int = 30) -> list[float]:
    return [_timed(call)[1] for _ in range(times)]


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start_ns = time.perf_counter_ns()
    result = call()
    return result, (time.perf_counter_ns() - start_ns) / 1e6


def _memory_in_own_process(num_blocks: int) -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(_memory, (num_blocks,))


def _memory(num_blocks: int) -> list[int]:
    """Bytes of a pool that is blank, full of cached prefixes, and full after each was evicted twice."""
    prompts = Prompts()
    gc.collect()
    before = _resident_bytes()
    driver = Driver(KVCacheManager(num_blocks=num_blocks), prompts)
    sizes = [_resident_bytes()]
    driver.fill()
    gc.collect()
    sizes.append(_resident_bytes())
    for _ in range(2 * num_blocks // CHAIN_BLOCKS):
        driver.manager.forget(driver.cache(prompts.next(CHAIN_BLOCKS * B)))
    gc.collect()
    sizes.append(_resident_bytes())
    return [size - before for size in sizes]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _admits(handles: Sequence[int], num_known_tokens: int) -> Admits:
    return Admits(
        handles=handles,
        num_known_tokens=[num_known_tokens] * len(handles),
        num_watermark_blocks=[0] * len(handles),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-blocks", type=int, nargs="+", default=[32_768, 1_000_000], help="sizes of the pools")
    parser.add_argument("--num-plans", type=int, default=320, help="plans of each kind")
    return parser.parse_args()


if __name__ == "__main__":
    main()
