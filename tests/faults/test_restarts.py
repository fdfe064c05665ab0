"""Declared tables, sessions and step faults over the real wires: whoever restarts or fails, tables agree and tokens are
those of an undisturbed run.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.scheduler.v1 import scheduler_pb2 as pb
from tests.fakes.paged_worker import continuation
from tests.faults import rig as rigs
from tests.faults.proxy import Direction, Fault, Faults
from tests.faults.rig import Rig

MAX_TOKENS = 150


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigs.started(tmp_path) as started:
        yield started


def prompt(number: int) -> list[int]:
    return [*range(300, 340), number]


async def submit(rig: Rig) -> None:
    for number in range(4):
        await rig.gateway.submit(number, prompt(number), max_tokens=MAX_TOKENS)


async def half_way(rig: Rig) -> None:
    await rig.gateway.until(lambda: all(len(rig.gateway.tokens[number]) > 20 for number in range(4)))


async def all_right(rig: Rig) -> list[pb.Finished]:
    finished = [await rig.gateway.end_of(number) for number in range(4)]
    for number in range(4):
        assert rig.gateway.tokens[number] == continuation(prompt(number), MAX_TOKENS)
    await rig.stack.idle()
    return finished


async def test_a_restarted_kv_cache_service_takes_the_tables_over(rig: Rig) -> None:
    await rig.add_worker(step_s=0.015)
    await submit(rig)
    await half_way(rig)
    before = await rig.equal_tables()
    await rig.stack.stop_kvcache()
    await rig.stack.start_kvcache()
    await rig.stack.until(lambda: list(rig.stack.pools))
    after = await rig.equal_tables()
    assert {handle: ids[: len(before[handle])] for handle, ids in after.items()} == before
    finished = await all_right(rig)
    assert all(one.figures.num_preemptions == 0 for one in finished)


async def test_a_redial_keeps_the_tables_under_the_next_session(rig: Rig) -> None:
    await rig.add_worker(step_s=0.015)
    await submit(rig)
    await half_way(rig)
    before = await rig.equal_tables()
    rig.worker_wire.cut()
    await rig.stack.until(lambda: rig.loop().link.hello.session == 2)
    after = await rig.equal_tables()
    assert {handle: ids[: len(before[handle])] for handle, ids in after.items()} == before
    (pool,) = rig.stack.pools
    assert pool.key.session == 2
    finished = await all_right(rig)
    assert all(one.figures.num_preemptions == 0 for one in finished)


async def test_a_restarted_scheduler_begins_with_no_tables_and_ends_with_the_same_tokens(rig: Rig) -> None:
    await rig.add_worker(step_s=0.015)
    await submit(rig)
    await half_way(rig)
    await rig.stack.stop_scheduler()
    await rig.stack.start_scheduler()
    rig.gateway.state = pb.ServingState()
    await rig.stack.dial(rig.gateway)
    await rig.gateway.until(lambda: rig.gateway.state.ready)
    await submit(rig)
    assert await rig.equal_tables()
    await all_right(rig)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_steps_that_fail_among_messages_that_are_lost(tmp_path: Path, seed: int) -> None:
    """A faulted step leaves rubbish in its slots; nothing of it may ever be read."""
    lossy = Faults(kinds=list(Fault), directions=list(Direction), seed=seed, rate=0.03, most=6)
    async with rigs.started(tmp_path, on_worker_link=lossy) as rig:
        await rig.add_worker(num_blocks=40, faulty_seqs=(7, 40, 41, 90))
        await submit(rig)
        await all_right(rig)
        assert rig.loop().core.figures.num_preemptions > 0
