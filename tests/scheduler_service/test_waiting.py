"""Those who wait, through the whole shell: bounds, deadlines, what GetState and Prometheus tell, and stalls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc
from scheduler_service import watchdog, worker_loop
from scheduler_service.core import progress
from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.scheduler_service import stack as stacks
from tests.scheduler_service.stack import Stack

PROMPT = list(range(100, 140))
LABELS = {"model_name": "fake", "engine": "w0"}


def alone(**limits: Any) -> Limits:
    """One request runs at a time."""
    return Limits(max_num_seqs=1, **limits)


async def stopped(stack: Stack) -> tuple[FakeWorker, FakeGateway]:
    """A worker that has begun request 0 and goes on when its gate is opened."""
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    worker.gate.clear()
    await gateway.submit(0, PROMPT)
    await gateway.until(lambda: 0 in gateway.admitted)
    return worker, gateway


async def state_of(stack: Stack) -> pb.GetStateResponse:
    async with stack.channel() as channel:
        state: pb.GetStateResponse = await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetState(
            pb.GetStateRequest()
        )
    return state


@pytest.mark.parametrize(
    ("limits", "reason", "subject"),
    [
        ({"max_queue_len": 2}, "QUEUE_FULL", "requests"),
        ({"max_queued_tokens": 100}, "QUEUE_FULL", "tokens"),
        ({"max_tenant_queue_len": 2}, "TENANT_QUOTA", "tenant:acme"),
    ],
)
async def test_too_much_of_something_is_refused_and_named(
    tmp_path: Path, limits: dict[str, int], reason: str, subject: str
) -> None:
    async with stacks.started(tmp_path, limits=alone(**limits)) as stack:
        worker, gateway = await stopped(stack)
        for number in (1, 2, 3):
            await gateway.submit(number, PROMPT, tenant="acme")
        await gateway.until(lambda: 3 in gateway.rejected)
        failure = gateway.rejected[3]
        assert (failure.reason, failure.quota_subject) == (reason, subject)
        assert stack.registry.get_sample_value("octavo_requests_rejected_total", {"reason": reason}) == 1
        assert failure.retry_after.ToTimedelta() == timedelta(seconds=1)  # nothing is measured yet
        worker.gate.set()
        for number in (0, 1, 2):
            await gateway.end_of(number)


async def test_the_bounds_hold_for_those_who_wait_for_a_worker(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=alone(max_tenant_queue_len=1)) as stack:
        gateway = FakeGateway()
        await stack.dial(gateway)
        await gateway.until(lambda: gateway.state.scheduler_incarnation)
        for number, tenant in enumerate(["a", "a", "b"]):
            await gateway.submit(number, PROMPT, tenant=tenant)
        await gateway.until(lambda: 1 in gateway.rejected)
        assert gateway.rejected[1].quota_subject == "tenant:a"
        await stack.dial(FakeWorker())
        await gateway.end_of(0)
        await gateway.end_of(2)


async def test_who_would_wait_too_long_is_refused_and_let_in_when_it_comes_back_as_told(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=alone(max_queue_wait_s=0.5)) as stack:
        worker, gateway = await stopped(stack)
        await asyncio.sleep(0.4)  # the one that runs has the only place, and may be half done
        await gateway.submit(1, PROMPT)
        await gateway.until(lambda: 1 in gateway.rejected)
        failure = gateway.rejected[1]
        assert (failure.reason, failure.quota_subject) == ("QUEUE_FULL", "wait")
        assert float(failure.metadata["predicted_ttft_s"]) > float(failure.metadata["max_queue_wait_s"]) == 0.5
        worker.gate.set()
        await gateway.end_of(0)
        await asyncio.sleep(failure.retry_after.ToTimedelta().total_seconds())
        await gateway.submit(2, PROMPT)
        await gateway.end_of(2)
        assert gateway.tokens[2] == continuation(PROMPT, 10)


async def test_under_fair_a_small_tenant_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=alone(), policy=Policy.FAIR) as stack:
        worker, gateway = await stopped(stack)
        for number in range(1, 9):
            await gateway.submit(number, PROMPT, tenant="large")
        await gateway.submit(9, PROMPT, tenant="small")
        await stack.until(lambda: stack.engine.workers.loops[0].core.num_waiting == 9)
        worker.gate.set()
        for number in range(10):
            await gateway.end_of(number)
        assert list(gateway.finished).index(9) <= 2


async def slow_queue(stack: Stack) -> tuple[FakeWorker, FakeGateway]:
    """Twenty requests have been served, thirty more wait, and it is known that they wait for long."""
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    for number in range(20):
        await gateway.submit(number, [number, *PROMPT], max_tokens=3)
    for number in range(20):
        await gateway.end_of(number)
    worker.gate.clear()
    for number in range(20, 50):
        await gateway.submit(number, PROMPT)
    await asyncio.sleep(1.0)  # while which nobody is let in
    return worker, gateway


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=alone()) as stack:
        worker, gateway = await slow_queue(stack)
        state = (await state_of(stack)).workers[0]
        predicted = state.predicted_ttft.ToTimedelta()
        assert predicted > timedelta(seconds=1)
        await gateway.submit(50, PROMPT, remaining=predicted / 2)
        await gateway.until(lambda: 50 in gateway.rejected)
        failure = gateway.rejected[50]
        assert failure.reason == "DEADLINE_UNREACHABLE"
        assert float(failure.metadata["predicted_ttft_s"]) > float(failure.metadata["remaining_s"])
        assert failure.retry_after.ToTimedelta() > timedelta()
        await gateway.submit(51, PROMPT, remaining=timedelta(seconds=100))
        worker.gate.set()
        await gateway.end_of(51)


async def test_what_has_run_out_of_time_is_never_computed(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=alone()) as stack:
        worker, gateway = await stopped(stack)
        await gateway.submit(1, [9] * 20, remaining=timedelta(seconds=0.05))
        await gateway.submit(2, [8] * 20)
        await gateway.end_of(1)
        assert gateway.finished[1].failure.reason == "DEADLINE_EXCEEDED"
        worker.gate.set()
        await gateway.end_of(2)
        computed = [new.request_id for message in worker.received for new in message.step.new_requests]
        assert [request_id.rpartition("-")[2] for request_id in computed] == ["0", "2"]


async def test_the_cache_is_asked_before_a_deadline_is_judged(stack: Stack) -> None:
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await gateway.end_of(1)
    worker.gate.clear()
    await gateway.submit(2, PROMPT, remaining=timedelta(seconds=100))
    await gateway.until(lambda: 2 in gateway.admitted)
    (request,) = stack.engine.workers.loops[0].core.running
    assert request.num_matched_tokens == 32
    worker.gate.set()
    await gateway.end_of(2)


@asynccontextmanager
async def three_waiting(tmp_path: Path) -> AsyncIterator[Stack]:
    """Three of 40 tokens each, of tenants a, b and a, behind one that runs; all end with the block."""
    async with stacks.started(tmp_path, limits=alone(), policy=Policy.FAIR) as stack:
        worker, gateway = await stopped(stack)
        for number, tenant in enumerate(["a", "b", "a"], start=1):
            await gateway.submit(number, PROMPT, tenant=tenant)
        await stack.until(lambda: stack.engine.workers.loops[0].core.num_waiting == 3)
        yield stack
        worker.gate.set()
        for number in range(4):
            await gateway.end_of(number)


async def test_the_state_tells_who_waits_for_what(tmp_path: Path) -> None:
    async with three_waiting(tmp_path) as stack:
        state = await state_of(stack)
        assert state.scheduling_policy == "fair"
        (seen,) = state.workers
        assert sum(waiting.num_requests for waiting in seen.wait_reasons) == 3
        assert {waiting.reason for waiting in seen.wait_reasons} <= {"turn", "max_seqs", "kv_blocks"}
        assert [(queue.tenant, queue.num_requests, queue.num_tokens) for queue in seen.tenant_queues] == [
            ("a", 2, 80), ("b", 1, 40),
        ]  # fmt: skip
        assert (seen.num_waiting_tokens, seen.num_steps_in_flight > 0) == (120, True)
        assert not seen.HasField("predicted_ttft")
        assert not seen.HasField("drained_requests_per_s")


async def test_the_metrics_tell_how_much_waits_and_whose_it_is(tmp_path: Path) -> None:
    async with three_waiting(tmp_path) as stack:
        value = stack.registry.get_sample_value
        assert value("vllm:num_requests_waiting_by_reason", {**LABELS, "reason": "capacity"}) == 3
        assert value("vllm:num_requests_waiting_by_reason", {**LABELS, "reason": "deferred"}) == 0
        assert value("octavo_tenant_requests_waiting", {**LABELS, "tenant": "a"}) == 2
        assert value("octavo_queued_tokens", LABELS) == 120


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become tenths."""
    monkeypatch.setattr(watchdog, "WATCH_S", 0.05)
    monkeypatch.setattr(progress, "STALLED_AFTER_S", 0.3)
    monkeypatch.setattr(progress, "STEP_STALLED_AFTER_S", 0.3)
    for module in (progress, worker_loop):
        monkeypatch.setattr(module, "HOPELESS_AFTER_S", 2.5)


def take_all_blocks(stack: Stack) -> list[int]:
    """Somebody whom no scheduler knows holds every block of the one pool."""
    (pool,) = stack.pools
    return pool.manager.pool.allocate(pool.manager.figures.num_free)


async def stall_of(stack: Stack) -> pb.Stall:
    """The one that there is, once there is one."""
    await stack.until(lambda: stack.engine.workers.loops[0].watchdog.stall is not None)
    return (await state_of(stack)).workers[0].stall


@pytest.mark.usefixtures("is_impatient")
async def test_nothing_running_and_something_waiting_is_an_error_and_ends(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    take_all_blocks(stack)
    await gateway.submit(1, PROMPT)
    stall = await stall_of(stack)
    assert (stall.waits_for, stall.message) == ("kv_blocks", progress.WAITS_FOR["kv_blocks"])
    value = stack.registry.get_sample_value
    stalled_s = value("octavo_stall_seconds", {**LABELS, "reason": "kv_blocks"})
    assert stalled_s is not None
    assert stalled_s >= 0.3
    assert value("octavo_stall_seconds", {**LABELS, "reason": "kvcache"}) == 0
    assert "no_progress" in [record.getMessage() for record in caplog.records]
    failure = (await gateway.end_of(1)).failure
    assert (failure.reason, failure.metadata["waits_for"]) == ("NO_PROGRESS", "kv_blocks")
    assert "blocks of the KV cache" in failure.message
    assert failure.HasField("retry_after")
    await stack.until(lambda: stack.engine.workers.loops[0].watchdog.stall is None)
    assert value("octavo_stalls_total", {**LABELS, "reason": "kv_blocks"}) == 1


@pytest.mark.usefixtures("is_impatient")
async def test_what_comes_free_without_a_word_is_asked_for_again(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    taken = take_all_blocks(stack)
    await gateway.submit(1, PROMPT)
    await stall_of(stack)
    (pool,) = stack.pools
    pool.manager.pool.free(taken)
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)


@pytest.mark.usefixtures("is_impatient")
async def test_a_worker_that_does_not_answer_a_step_shows_and_its_requests_wait(stack: Stack) -> None:
    worker, gateway = await stopped(stack)
    stall = await stall_of(stack)
    assert stall.waits_for == "worker_step"
    await asyncio.sleep(2.8)  # longer than hopeless
    worker.gate.set()
    await gateway.end_of(0)
    assert gateway.tokens[0] == continuation(PROMPT, 10)
    await stack.until(lambda: stack.engine.workers.loops[0].watchdog.stall is None)


@pytest.mark.usefixtures("is_impatient")
async def test_a_kv_cache_service_that_is_away_shows_and_its_requests_wait(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await stack.stop_kvcache()
    await gateway.submit(1, PROMPT)
    stall = await stall_of(stack)
    assert stall.waits_for == "kvcache"
    await stack.start_kvcache()
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)
