"""Gateways and operators are told the truth: whether a request sent now would be served, and if not, why not."""

import pytest

from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc
from scheduler_service import kvcache_client, watchdog
from scheduler_service.core import progress
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.scheduler_service.stack import Stack

PROMPT = list(range(100, 140))
KVCACHE_AWAY = "requests at worker w0 wait for the KV cache service, which does not answer"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules with shorter waits."""
    monkeypatch.setattr(kvcache_client, "AWAY_S", 1.0)
    monkeypatch.setattr(kvcache_client, "CHECK_S", 0.2)
    monkeypatch.setattr(watchdog, "WATCH_S", 0.1)
    monkeypatch.setattr(progress, "STEP_STALLED_AFTER_S", 0.5)


async def told(stack: Stack) -> pb.GetStateResponse:
    async with stack.channel() as channel:
        state: pb.GetStateResponse = await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetState(
            pb.GetStateRequest()
        )
        return state


async def not_ready(gateway: FakeGateway) -> str:
    await gateway.until(lambda: not gateway.state.ready)
    return gateway.state.reason


async def test_a_kv_cache_service_that_is_away_is_told_though_nobody_asks_for_anything(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await stack.stop_kvcache()
    assert await not_ready(gateway) == KVCACHE_AWAY
    state = await told(stack)
    assert (state.serving.ready, state.serving.reason, state.kvcache_connected) == (False, KVCACHE_AWAY, False)
    await gateway.submit(1, PROMPT)
    await stack.start_kvcache()
    await gateway.until(lambda: gateway.state.ready)
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)
    assert (await told(stack)).kvcache_connected


async def test_a_kv_cache_service_that_is_restarted_at_once_is_no_news(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    num_messages = gateway.num_messages
    await stack.stop_kvcache()
    await stack.start_kvcache()
    await stack.until(lambda: stack.engine.kvcache.is_connected)
    assert gateway.num_messages == num_messages


async def test_a_step_that_is_not_answered_is_told_until_it_is(stack: Stack) -> None:
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    worker.gate.clear()
    await gateway.submit(1, PROMPT)
    assert await not_ready(gateway) == "requests at worker w0 wait for the worker, which has not answered a step"
    assert not (await told(stack)).serving.ready
    worker.gate.set()
    await gateway.until(lambda: gateway.state.ready)
    await gateway.end_of(1)


async def test_a_worker_that_does_not_answer_gets_nothing_while_another_one_does(stack: Stack) -> None:
    hung, other = FakeWorker(), FakeWorker("w1", incarnation=2)
    await stack.dial(hung)
    gateway = await stack.ready_gateway()
    hung.gate.clear()
    await gateway.submit(1, PROMPT)
    await not_ready(gateway)
    await stack.dial(other)
    await gateway.until(lambda: gateway.state.ready)
    for number in range(2, 6):
        await gateway.submit(number, [number, *PROMPT])
        await gateway.end_of(number)
    hung.gate.set()
    await gateway.end_of(1)
    assert gateway.state.ready
