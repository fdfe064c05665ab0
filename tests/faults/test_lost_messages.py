"""Scenario 95: whatever is lost, doubled, swapped, late or cut on the inner wires, every request ends with the tokens
of an undisturbed run, and scheduler, KV cache service and worker hold the same tables.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_worker import scheduler_link
from octavo.worker.v1 import worker_pb2 as pb
from scheduler_service import kvcache_client, worker_link
from tests.fakes.paged_worker import continuation
from tests.faults import rig as rigs
from tests.faults.proxy import Direction, Fault, Faults
from tests.faults.rig import Rig

NUM_REQUESTS = 8
MAX_TOKENS = 60
NUM_BLOCKS = 30  # too few for all of them at once: some are preempted
SHARED = list(range(100, 150))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules with shorter waits, so that a run takes a second."""
    monkeypatch.setattr(kvcache_client, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(scheduler_link, "SILENCE_S", 0.7)  # of a scheduler that beats every 0.1 s
    monkeypatch.setattr(worker_link, "BEAT_S", 0.1)
    monkeypatch.setattr(worker_link, "STEP_LOST_S", 0.3)


def prompt(number: int) -> list[int]:
    return [*SHARED, 1000 + number, *range(number)]


async def run(rig: Rig, worker_ids: Sequence[str] = ("w0",)) -> None:
    """Everything ends right, and half-way the tables agree."""
    for worker_id in worker_ids:
        await rig.add_worker(worker_id, num_blocks=NUM_BLOCKS, step_s=0.001 if len(worker_ids) == 1 else 0.008)
    gateway = rig.gateway
    for number in range(NUM_REQUESTS):
        await gateway.submit(number, prompt(number), max_tokens=MAX_TOKENS)
    await gateway.until(lambda: sum(map(len, gateway.tokens.values())) > 150, timeout_s=30)
    tables = [await rig.equal_tables(worker_id) for worker_id in worker_ids]
    assert any(tables)
    for number in range(NUM_REQUESTS):
        await gateway.until(lambda: number in gateway.finished, timeout_s=30)  # noqa: B023
        assert gateway.tokens[number] == continuation(prompt(number), MAX_TOKENS)
    await rig.stack.idle()


def faults(kinds: list[Fault], directions: list[Direction], *, seed: int, rate: float = 0.05, most: int = 5) -> Faults:
    return Faults(kinds=kinds, directions=directions, seed=seed, rate=rate, most=most)


async def test_an_undisturbed_run_ends_right_and_its_tables_agree(tmp_path: Path) -> None:
    async with rigs.started(tmp_path) as rig:
        await run(rig)
        assert (rig.worker_wire.num_streams, rig.plan_wire.num_streams) == (1, 1)
        assert rig.loop().core.figures.num_preemptions > 0


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
@pytest.mark.parametrize("kind", Fault, ids=lambda kind: kind.value)
async def test_on_the_worker_link(tmp_path: Path, kind: Fault, direction: Direction) -> None:
    drawn = faults([kind], [direction], seed=1)
    async with rigs.started(tmp_path, on_worker_link=drawn) as rig:
        await run(rig)
    assert drawn.done[direction, kind] > 0


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
@pytest.mark.parametrize("kind", Fault, ids=lambda kind: kind.value)
async def test_on_the_plan_step_stream(tmp_path: Path, kind: Fault, direction: Direction) -> None:
    drawn = faults([kind], [direction], seed=1, most=3)
    async with rigs.started(tmp_path, on_plan_step=drawn) as rig:
        await run(rig)
    assert drawn.done[direction, kind] > 0


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 42))
async def test_everything_at_once(tmp_path: Path, seed: int) -> None:
    link = faults(list(Fault), list(Direction), seed=seed, rate=0.06, most=15)
    plan = faults(list(Fault), list(Direction), seed=-seed, rate=0.06, most=8)
    async with rigs.started(tmp_path, on_worker_link=link, on_plan_step=plan) as rig:
        await run(rig, ("w0", "w1") if seed % 2 else ("w0",))
    assert link.done.total() + plan.done.total() > 0


def _is_step(message: bytes) -> bool:
    return pb.ConnectResponse.FromString(message).HasField("step")


def _is_result(message: bytes) -> bool:
    return pb.ConnectRequest.FromString(message).HasField("result")


@pytest.mark.parametrize(
    ("direction", "is_meant"), [(Direction.DOWN, _is_step), (Direction.UP, _is_result)], ids=["the step", "the result"]
)
async def test_when_the_only_one_there_is_gets_lost_the_heartbeat_tells(
    tmp_path: Path, direction: Direction, is_meant: Callable[[bytes], bool]
) -> None:
    """No later number shows the gap: a request of one token has one step and one result."""
    drawn = faults([Fault.DROP], [direction], seed=1, rate=1.0, most=1)
    drawn.concern = is_meant
    async with rigs.started(tmp_path, on_worker_link=drawn) as rig:
        await rig.add_worker()
        await rig.gateway.submit(0, prompt(0), max_tokens=1)
        finished = await rig.gateway.end_of(0)
        assert drawn.done.total() == 1
        assert rig.gateway.tokens[0] == continuation(prompt(0), 1)
        assert (rig.worker_wire.num_streams, finished.figures.num_preemptions) == (2, 0)
