"""Workers that come and go under load: each request runs where it was placed, moves only before it has begun, and ends
right.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from octavo import client
from octavo.errors import from_rpc_error
from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from scheduler_service.core.plan import Limits
from tests.fakes.paged_worker import continuation
from tests.faults import rig as rigs
from tests.faults.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigs.started(tmp_path) as started:
        yield started


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Rig]:
    """Every worker runs one request at a time, so that others wait."""
    async with rigs.started(tmp_path, limits=Limits(max_num_seqs=1)) as started:
        yield started


def prompt(number: int) -> list[int]:
    return [1000 + number, *range(30 + number % 7)]


async def submit(rig: Rig, *numbers: int, max_tokens: int = 60) -> None:
    for number in numbers:
        await rig.gateway.submit(number, prompt(number), max_tokens=max_tokens)


async def begun(rig: Rig, *numbers: int) -> None:
    await rig.gateway.until(lambda: all(len(rig.gateway.tokens[number]) > 3 for number in numbers))


async def all_right(rig: Rig, *numbers: int, max_tokens: int = 60, num_preemptions: int | None = 0) -> None:
    """They end with the tokens of an undisturbed run, after so many preemptions (None: any number)."""
    for number in numbers:
        finished = await rig.gateway.end_of(number)
        assert rig.gateway.tokens[number] == continuation(prompt(number), max_tokens)
        assert num_preemptions in (None, finished.figures.num_preemptions)


async def state(rig: Rig) -> dict[str, pb.WorkerState]:
    async with client.channel(rig.stack.scheduler_addr) as channel:
        response = await SchedulerServiceStub(channel).GetState(pb.GetStateRequest())
    return {worker.worker_id: worker for worker in response.workers}


async def ended(rig: Rig, worker_id: str) -> None:
    """The worker has left in good order, and the scheduler knows."""
    await asyncio.wait_for(asyncio.shield(rig.workers[worker_id].running), 10)
    await rig.stack.until(lambda: all(loop.worker_id != worker_id for loop in rig.stack.engine.workers.loops))


async def test_requests_are_spread_over_the_workers(rig: Rig) -> None:
    for worker_id in ("w0", "w1", "w2"):
        await rig.add_worker(worker_id)
    await submit(rig, *range(12))
    await all_right(rig, *range(12))
    steps = {worker_id: worker.num_steps for worker_id, worker in (await state(rig)).items()}
    assert all(steps.values()), steps


async def test_a_prompt_goes_where_its_prefix_is(rig: Rig) -> None:
    for worker_id in ("w0", "w1", "w2"):
        await rig.add_worker(worker_id)
    await submit(rig, 7)
    await all_right(rig, 7)
    for _ in range(4):
        rig.gateway.tokens.clear()
        rig.gateway.finished.clear()
        await submit(rig, 7)
        await all_right(rig, 7)
        assert rig.gateway.admitted[7].num_cached_tokens == 16


async def test_a_worker_that_drains_finishes_its_own_and_gets_nothing_new(rig: Rig) -> None:
    await rig.add_worker("w0", step_s=0.005)
    await submit(rig, 0, 1, max_tokens=150)
    await begun(rig, 0, 1)
    await rig.add_worker("w1")
    rig.workers["w0"].link.drain()
    await rig.stack.until(lambda: rig.loop("w0").is_draining)
    assert {worker_id: worker.draining for worker_id, worker in (await state(rig)).items()} == {"w0": True, "w1": False}
    await submit(rig, *range(2, 8))
    await all_right(rig, *range(2, 8))
    assert rig.loop("w0").num_requests == 2
    await all_right(rig, 0, 1, max_tokens=150)
    await ended(rig, "w0")


async def test_what_waits_on_a_draining_worker_goes_to_others_and_what_runs_stays(narrow: Rig) -> None:
    await narrow.add_worker("w0", step_s=0.005)
    await submit(narrow, 0, 1, 2, 3)
    await begun(narrow, 0)
    narrow.workers["w0"].link.drain()
    await narrow.stack.until(lambda: narrow.loop("w0").is_draining)
    assert narrow.loop("w0").num_requests == 4  # there is nobody else
    await narrow.add_worker("w1")
    await narrow.stack.until(lambda: narrow.loop("w0").num_requests == 1)
    await all_right(narrow, 0, 1, 2, 3)
    await ended(narrow, "w0")


async def test_the_last_worker_that_drains_finishes_everything_it_has(narrow: Rig) -> None:
    await narrow.add_worker("w0")
    await submit(narrow, 0, 1, 2)
    await begun(narrow, 0)
    narrow.workers["w0"].link.drain()
    await all_right(narrow, 0, 1, 2)
    await ended(narrow, "w0")
    await narrow.gateway.until(lambda: "no worker" in narrow.gateway.state.reason)


async def test_when_all_workers_drain_they_leave_at_once_for_a_request_that_has_to_wait(rig: Rig) -> None:
    """Else it would wait for the longest of their answers; these go on with the next worker, too."""
    for worker_id in ("w0", "w1"):
        await rig.add_worker(worker_id, step_s=0.05)
    await submit(rig, 0, 1, 2, 3, max_tokens=100)
    await begun(rig, 0, 1, 2, 3)
    for worker_id in ("w0", "w1"):
        rig.workers[worker_id].link.drain()
    await rig.stack.until(lambda: all(loop.is_draining for loop in rig.stack.engine.workers.loops))
    await begun(rig, 0)
    assert len(rig.stack.engine.workers.loops) == 2
    await submit(rig, 4)
    await ended(rig, "w0")
    await ended(rig, "w1")
    assert not rig.gateway.finished
    await rig.add_worker("w2")
    await all_right(rig, 0, 1, 2, 3, max_tokens=100, num_preemptions=1)
    await all_right(rig, 4)


async def test_a_worker_that_drains_does_not_keep_those_waiting_whom_another_left_behind(rig: Rig) -> None:
    await rig.add_worker("w0", step_s=0.05)
    await submit(rig, 0, max_tokens=100)
    await begun(rig, 0)
    await rig.add_worker("w1", step_s=0.05)
    rig.workers["w0"].link.drain()
    await rig.stack.until(lambda: rig.loop("w0").is_draining)
    await submit(rig, 1)
    await begun(rig, 1)
    rig.workers["w1"].link.leave()
    await ended(rig, "w0")
    await rig.add_worker("w2")
    await all_right(rig, 1, num_preemptions=1)
    await all_right(rig, 0, max_tokens=100, num_preemptions=1)


async def test_an_idle_worker_takes_over_what_has_not_begun_elsewhere(narrow: Rig) -> None:
    """The one that runs stays; of the others the first go, because they have waited longest."""
    await narrow.add_worker("w0", step_s=0.005)
    await submit(narrow, *range(5))
    await begun(narrow, 0)
    await narrow.add_worker("w1", step_s=0.005)
    await begun(narrow, 1)
    assert 0 not in narrow.gateway.finished
    assert [request.request_id[-2:] for request in narrow.loop("w0").core.running] == ["-0"]
    await all_right(narrow, *range(5))
    counted = await state(narrow)
    assert min(worker.num_steps for worker in counted.values()) > 60


async def test_a_request_that_moves_can_be_cancelled_at_the_same_moment(narrow: Rig) -> None:
    await narrow.add_worker("w0", step_s=0.01)
    await narrow.add_worker("w1", step_s=0.01)
    await submit(narrow, *range(6))
    await begun(narrow, 0, 1)
    engine = narrow.stack.engine
    loop = max(engine.workers.open_loops, key=lambda loop: loop.core.num_waiting)
    (session,) = engine.gateways
    waiting = [num for num, ticket in session.tickets.items() if ticket.request in loop.core.waiting]
    assert waiting
    engine.workers.drain(loop)
    for number in waiting:
        engine.cancel(session, number, "its client is gone")
    for number in waiting:
        assert (await narrow.gateway.end_of(number)).reason == pb.FINISH_REASON_CANCELLED
    await all_right(narrow, *(set(range(6)) - set(waiting)))
    await ended(narrow, loop.worker_id)


async def test_a_worker_that_cannot_wait_any_longer_hands_over_what_is_left(rig: Rig) -> None:
    await rig.add_worker("w0", step_s=0.05)
    await submit(rig, 0, 1, max_tokens=200)
    await begun(rig, 0, 1)
    await rig.add_worker("w1")
    rig.workers["w0"].link.drain()
    await rig.stack.until(lambda: rig.loop("w0").is_draining)
    rig.workers["w0"].link.leave()
    await ended(rig, "w0")
    await all_right(rig, 0, 1, max_tokens=200, num_preemptions=1)


async def test_an_operator_drains_a_worker_by_name(rig: Rig) -> None:
    await rig.add_worker("w0", step_s=0.005)
    await submit(rig, 0, max_tokens=100)
    await begun(rig, 0)
    await rig.add_worker("w1")
    async with client.channel(rig.stack.scheduler_addr) as channel:
        stub = SchedulerServiceStub(channel)
        first = await stub.Drain(pb.DrainRequest(worker_id="w0", limit=Duration(nanos=50_000_000)))
        assert first.num_open_requests == 1
        await submit(rig, 1)
        await all_right(rig, 1)
        assert rig.loop("w0").num_requests == 1
        assert (await stub.Drain(pb.DrainRequest(worker_id="w0"), timeout=10)).num_open_requests == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Drain(pb.DrainRequest(worker_id="w0"))
    assert from_rpc_error(caught.value).reason == "UNKNOWN_WORKER"
    await all_right(rig, 0, max_tokens=100)
    await asyncio.wait_for(asyncio.shield(rig.workers["w0"].running), 10)


async def test_workers_join_and_leave_under_load(rig: Rig) -> None:
    """One drains, one just leaves, one dies; two come. Nothing is lost, repeated or changed."""
    await rig.add_worker("w0")
    await rig.add_worker("w1")
    sending = asyncio.ensure_future(_trickle(rig, 60))
    await begun(rig, 5)
    await rig.add_worker("w2")
    rig.workers["w0"].link.drain()
    await begun(rig, 20)
    rig.workers["w1"].link.leave()
    await rig.add_worker("w3")
    await begun(rig, 35)
    await rig.kill("w2")
    await sending
    await all_right(rig, *range(60), num_preemptions=None)
    await ended(rig, "w0")
    await ended(rig, "w1")
    await rig.stack.idle()


async def _trickle(rig: Rig, num_requests: int) -> None:
    for number in range(num_requests):
        await submit(rig, number)
        await asyncio.sleep(0.02)
