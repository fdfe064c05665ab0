"""Scenario 94: 256 decoding requests, 100 steps: at most one plan per step, and how much plans and steps weigh."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from scheduler_service import kvcache_wire, worker_wire
from scheduler_service.core.plan import Limits
from scheduler_service.worker_hello import Fingerprint, Hello
from tests.scheduler_service.core.rig import BLOCK_SIZE, Rig, family

NUM_RUNNING = 256
NUM_STEPS = 100

HELLO = Hello(
    worker_id="worker-0.cell-a.example.internal",
    incarnation=2**62,
    session=3,
    fingerprint=Fingerprint(
        hash_scheme=1, model_digest=b"m" * 32, tokenizer_digest=b"t" * 32, block_size=BLOCK_SIZE, kv_dtype="bfloat16",
        kv_layout="nb2hsd",
    ),
    model_name="m",
    max_model_len=100_000,
    vocab_size=50_000,
    num_blocks=16_384,
    max_num_batched_tokens=16_384,
    last_executed_seq=0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What 100 steps of decoding sent."""

    plan_bytes: list[int]
    step_bytes: list[int]


def decoded(prompt_lengths: Sequence[int]) -> Traffic:
    """Everybody decodes, two steps ahead; then 100 steps are weighed."""
    limits = Limits(max_num_seqs=NUM_RUNNING, max_num_batched_tokens=16_384)
    rig = Rig(window=2, num_blocks=HELLO.num_blocks, limits=limits)
    for number, length in enumerate(prompt_lengths):
        rig.submit(f"r{number}", family(chr(500 + number), length), max_tokens=1000)
    while rig.core.num_waiting or rig.core.num_steps_in_flight < 2:
        rig.plan()
    traffic = Traffic([], [])
    for number in range(NUM_STEPS + 3):  # the first steps are the last prefill's
        rig.result()
        num_plans = len(rig.plans)
        settlement = rig.plan()
        assert settlement is not None
        assert settlement.step is not None
        assert len(rig.plans) == num_plans + 1, "no step takes more than one plan"
        if number >= 3:
            if (plan := rig.plans[-1]).needs_answer:
                traffic.plan_bytes.append(kvcache_wire.plan(plan, HELLO, opening=1).ByteSize())
            message = worker_wire.step(settlement.step, session=3, tickets={}, trace_context=bytes(25))
            traffic.step_bytes.append(message.ByteSize())
    assert len(rig.core.running) == NUM_RUNNING
    return traffic


@pytest.fixture(scope="module")
def scattered() -> Traffic:
    """Requests that stand anywhere in their blocks, as those of many clients do."""
    rng = random.Random(94)
    return decoded([rng.randint(1, 64) for _ in range(NUM_RUNNING)])


def test_scenario_94_a_step_takes_at_most_one_plan(scattered: Traffic) -> None:
    assert len(scattered.step_bytes) == NUM_STEPS
    assert 0 < len(scattered.plan_bytes) <= NUM_STEPS


def test_scenario_94_a_plan_of_256_decoding_requests_stays_under_4_kb(scattered: Traffic) -> None:
    assert max(scattered.plan_bytes) <= 4096


def test_scenario_94_a_step_of_256_decoding_requests_stays_under_1_kb(scattered: Traffic) -> None:
    assert max(scattered.step_bytes) <= 1024


def test_scenario_94_when_all_end_a_block_together_13_of_16_steps_take_no_plan_at_all() -> None:
    """Three plans of 16 steps: the last slot, the next block, and 4,096 new ids. A step's share is still under 4 kB."""
    traffic = decoded([33] * NUM_RUNNING)
    assert len(traffic.plan_bytes) <= 3 * (NUM_STEPS // BLOCK_SIZE + 1)
    assert sum(traffic.plan_bytes) / NUM_STEPS <= 4096
    assert max(traffic.step_bytes) <= 4096  # one new block for each of 256 rows
