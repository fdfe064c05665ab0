"""Workers that fail, leave, come back and die; requests that outlive them."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from octavo.errors import from_rpc_error
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service import worker_link, workers
from scheduler_service.core.plan import Grants, Plan
from scheduler_service.worker_hello import Hello
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.fakes.worker_messages import step_of
from tests.scheduler_service.stack import Stack

PROMPT = list(range(100, 140))


async def three_running(stack: Stack, gateway: FakeGateway, *, max_tokens: int = 200) -> None:
    for number in range(3):
        await gateway.submit(number, [*PROMPT, number], max_tokens=max_tokens)
    await gateway.until(lambda: all(len(gateway.tokens[number]) > 10 for number in range(3)))


async def three_running_and_another_worker(stack: Stack) -> tuple[FakeWorker, Any, FakeGateway]:
    """The worker that has the requests, its stream, and whose they are."""
    first = FakeWorker("w0")
    stream = await stack.dial(first)
    gateway = await stack.ready_gateway()
    await three_running(stack, gateway)
    await stack.dial(FakeWorker("w1", incarnation=5))
    await gateway.until(lambda: gateway.state.num_blocks == 126)
    return first, stream, gateway


async def all_right(gateway: FakeGateway, *, max_tokens: int = 200) -> None:
    for number in range(3):
        await gateway.end_of(number)
        assert gateway.tokens[number] == continuation([*PROMPT, number], max_tokens)


async def lost(stream: "asyncio.Task[str]") -> None:
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def test_a_new_incarnation_takes_over_the_requests_of_the_dead_one(stack: Stack) -> None:
    stream = await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await three_running(stack, gateway)
    await lost(stream)
    await stack.dial(FakeWorker(incarnation=2))
    await all_right(gateway)
    assert all(finished.figures.num_preemptions == 1 for finished in gateway.finished.values())


async def test_another_worker_takes_over_the_requests_of_the_dead_one(stack: Stack) -> None:
    _, stream, gateway = await three_running_and_another_worker(stack)
    stream.cancel()
    await gateway.until(lambda: gateway.state.num_blocks == 63, timeout_s=8)
    await all_right(gateway)


async def test_a_plan_that_is_answered_as_its_worker_goes_is_not_settled(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is there, but between it and the loop that waits for it the worker has left."""
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    workers, plan = stack.engine.workers, stack.engine.kvcache.plan

    async def answered_too_late(hello: Hello, wishes: Plan) -> Grants:
        grants = await plan(hello, wishes)
        monkeypatch.setattr(stack.engine.kvcache, "plan", plan)
        workers.lose(workers.get("w0"), "it left", has_left=True)
        return grants

    monkeypatch.setattr(stack.engine.kvcache, "plan", answered_too_late)
    await gateway.submit(1, PROMPT)
    await gateway.until(lambda: "no worker" in gateway.state.reason)
    await stack.dial(FakeWorker("w1", incarnation=2))
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)


async def test_a_request_whose_workers_go_while_one_is_chosen_does_not_wait_for_ever(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker_id in ("w0", "w1"):
        await stack.dial(FakeWorker(worker_id))
    gateway = await stack.ready_gateway()
    await gateway.until(lambda: gateway.state.num_blocks == 126)
    workers, match = stack.engine.workers, stack.engine.kvcache.match
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow_match(prompts: Any) -> list[dict[str, int]]:
        asked.set()
        await may_answer.wait()
        return await match(prompts)

    monkeypatch.setattr(stack.engine.kvcache, "match", slow_match)
    await gateway.submit(1, PROMPT)
    await asyncio.wait_for(asked.wait(), 5)
    for worker_id in ("w0", "w1"):
        workers.lose(workers.get(worker_id), "it is gone")
    may_answer.set()
    (ticket,) = stack.engine._tickets.values()
    assert ticket.no_worker is not None
    await stack.dial(FakeWorker("w2", incarnation=2))
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)


async def test_the_same_incarnation_goes_on_where_its_stream_broke(stack: Stack) -> None:
    worker = FakeWorker()
    stream = await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await three_running(stack, gateway)
    await lost(stream)
    await stack.dial(worker)
    await all_right(gateway)
    assert all(finished.figures.num_preemptions == 0 for finished in gateway.finished.values())
    assert worker.hello.session == 2


async def test_steps_that_a_lost_stream_swallowed_are_sent_again_byte_for_byte(stack: Stack) -> None:
    worker = FakeWorker()
    stream = await stack.dial(worker)
    gateway = await stack.ready_gateway()
    worker.gate.clear()
    await gateway.submit(1, PROMPT)
    await gateway.until(lambda: 1 in gateway.admitted)
    await stack.received(worker, "step")
    await lost(stream)
    worker.gate.set()
    await stack.dial(worker)
    await gateway.end_of(1)
    sent = [message.step.SerializeToString() for message in worker.received if message.HasField("step")]
    assert sent[0] in sent[1:]


async def test_a_silent_worker_is_dead_and_told_so_when_it_comes_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "SILENCE_S", 1.5)
    worker = FakeWorker()
    stream = await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await lost(stream)
    await gateway.until(lambda: "no worker" in gateway.state.reason)
    assert "dead" in await asyncio.wait_for(await stack.dial(worker), 5)


async def test_who_does_not_dial_again_is_not_waited_for_where_another_can_go_on(stack: Stack) -> None:
    _, stream, gateway = await three_running_and_another_worker(stack)
    await lost(stream)
    await gateway.until(
        lambda: gateway.state.num_blocks == 63, timeout_s=(workers.REDIAL_S + worker_link.SILENCE_S) / 2
    )
    await all_right(gateway)


async def test_who_dials_again_in_time_keeps_its_requests_though_another_could_go_on(stack: Stack) -> None:
    first, stream, gateway = await three_running_and_another_worker(stack)
    await lost(stream)
    await stack.dial(first)
    await asyncio.sleep(workers.REDIAL_S + 0.2)
    assert gateway.state.num_blocks == 126
    await all_right(gateway)
    assert all(finished.figures.num_preemptions == 0 for finished in gateway.finished.values())


async def test_a_worker_that_leaves_is_no_alarm_and_its_requests_move_at_once(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, stream, gateway = await three_running_and_another_worker(stack)
    first.leave()
    assert await asyncio.wait_for(stream, 2) == ""
    await all_right(gateway)
    assert [record.levelname for record in caplog.records if record.message == "worker_left"] == ["INFO"]
    assert "worker_lost" not in caplog.text


async def test_a_stream_that_only_ends_may_come_back(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker()
    stream = await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await three_running(stack, gateway)
    worker.stop_writing()
    await asyncio.wait_for(stream, 2)
    await stack.dial(worker)
    await all_right(gateway)
    assert all(finished.figures.num_preemptions == 0 for finished in gateway.finished.values())


async def test_a_drained_scheduler_lets_its_workers_go_and_takes_none(stack: Stack) -> None:
    worker = FakeWorker()
    stream = await stack.dial(worker)
    await stack.ready_gateway()
    await stack.engine.hand_over()
    assert await asyncio.wait_for(stream, 2) == ""
    again = await stack.dial(worker)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again
    assert from_rpc_error(caught.value).reason == "SERVER_DRAINING"


async def test_a_faulted_step_voids_the_next_and_its_requests_are_tried_again(stack: Stack) -> None:
    worker = FakeWorker()
    worker.faulty_seqs = {5}
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await three_running(stack, gateway, max_tokens=40)
    await all_right(gateway, max_tokens=40)
    assert all(finished.figures.num_preemptions == 1 for finished in gateway.finished.values())


async def test_a_request_that_fails_every_step_is_poisoned_and_the_next_is_served(stack: Stack) -> None:
    worker = FakeWorker()
    worker.faulty_seqs = set(range(1, 20))
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    finished = await gateway.end_of(1)
    assert (finished.reason, finished.failure.reason) == (pb.FINISH_REASON_ERROR, "POISONED")
    worker.faulty_seqs.clear()
    await gateway.submit(2, PROMPT)
    await gateway.end_of(2)
    assert gateway.tokens[2] == continuation(PROMPT, 10)


async def test_a_worker_never_gets_more_tokens_in_a_step_than_it_takes(stack: Stack) -> None:
    worker = FakeWorker()
    worker.hello.max_num_batched_tokens = 16
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await gateway.end_of(1)
    steps = [step_of(message.step) for message in worker.received if message.HasField("step")]
    assert [sum(step.num_scheduled_tokens) for step in steps[:3]] == [16, 16, 8]
    assert gateway.tokens[1] == continuation(PROMPT, 10)


async def test_a_worker_with_another_model_is_refused_by_the_name_of_the_field(stack: Stack) -> None:
    await stack.dial(FakeWorker("w0"))
    await stack.ready_gateway()
    other = FakeWorker("w1", incarnation=2)
    other.hello.fingerprint.kv_dtype = "bfloat16"
    stream = await stack.dial(other)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream
    failure = from_rpc_error(caught.value)
    assert (failure.reason, failure.metadata["field"]) == ("FINGERPRINT_MISMATCH", "kv_dtype")


async def test_a_lower_session_is_refused(stack: Stack) -> None:
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    assert gateway.state.ready
    double = FakeWorker()
    stream = await stack.dial(double)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream
    assert from_rpc_error(caught.value).reason == "STALE_SESSION"


async def test_a_restarted_scheduler_gets_the_requests_from_the_gateway_and_resets_the_worker(stack: Stack) -> None:
    worker, gateway = FakeWorker(), FakeGateway()
    streams = [await stack.dial(worker), await stack.dial(gateway)]
    await gateway.until(lambda: gateway.state.ready)
    await three_running(stack, gateway)
    await stack.stop_scheduler()
    await asyncio.gather(*streams, return_exceptions=True)
    await stack.start_scheduler()
    gateway.state = pb.ServingState()
    await stack.dial(worker)
    await stack.dial(gateway)
    await gateway.until(lambda: gateway.state.ready)
    for number in range(3):
        await gateway.submit(number, [*PROMPT, number], max_tokens=200)
    await all_right(gateway)
    assert any(message.HasField("reset") for message in worker.received)


@pytest.mark.parametrize("has_begun", [False, True], ids=["before its first token", "after it"])
async def test_a_request_that_no_longer_fits_the_next_worker_ends(stack: Stack, *, has_begun: bool) -> None:
    worker = FakeWorker()
    if not has_begun:
        worker.gate.clear()
    stream = await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=100)
    await gateway.until(lambda: len(gateway.tokens[1]) > 3 if has_begun else 1 in gateway.admitted)
    await lost(stream)
    await stack.dial(FakeWorker(incarnation=2, num_blocks=3))
    await gateway.until(lambda: 1 in gateway.finished or 1 in gateway.rejected)
    assert (1 in gateway.finished) == has_begun
    await stack.idle()


async def test_a_request_goes_to_the_worker_that_has_room_for_it(stack: Stack) -> None:
    await stack.dial(FakeWorker("small", num_blocks=3))
    await stack.dial(FakeWorker("large", incarnation=5))
    gateway = await stack.ready_gateway()
    await gateway.until(lambda: gateway.state.num_blocks == 65)
    for number in range(6):
        await gateway.submit(number, [*PROMPT, number])
    for number in range(6):
        await gateway.end_of(number)
        assert gateway.tokens[number] == continuation([*PROMPT, number], 10)
