"""Gateways that lose their stream, come back in time or not, or bring another tokenizer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo.columns import pack, unpack
from octavo.common.v1.common_pb2 import PositionLogprobs, TokenLogprob
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service import failures, gateways
from scheduler_service.core.plan import Identity
from scheduler_service.core.request import Request, StopRules
from scheduler_service.gateway_session import GatewaySession
from scheduler_service.servicer import SchedulerServicer
from scheduler_service.serving import ServingState
from scheduler_service.session_wire import submission
from scheduler_service.tickets import Ticket
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.scheduler_service.stack import Stack

PROMPT = list(range(100, 140))


async def test_a_gateway_that_comes_back_gets_exactly_the_tokens_it_lacks(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=300)
    await gateway.until(lambda: len(gateway.tokens[1]) > 10)
    gateway.drop()
    await stack.until(lambda: not any(session.is_connected for session in stack.engine.gateways))
    await stack.dial(gateway)
    await gateway.until(lambda: gateway.num_streams == 2)
    await gateway.submit(1, PROMPT, max_tokens=300)
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 300)


async def test_a_gateway_that_stays_away_has_its_requests_cancelled(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "GRACE_S", 0.1)
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.until(lambda: len(gateway.tokens[1]) > 3)
    worker.gate.clear()  # so that it cannot end by itself
    gateway.drop()
    await stack.until(lambda: not stack.engine.gateways)
    worker.gate.set()
    await stack.idle()
    assert stack.engine.num_open_requests == 0


async def test_what_a_gateway_that_is_back_does_not_submit_again_is_cancelled(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was back before its old stream was missed, on which a cancel got lost: nobody waits for this request."""
    monkeypatch.setattr(gateways, "GRACE_S", 0.2)
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.until(lambda: len(gateway.tokens[1]) > 3)
    worker.gate.clear()  # so that it cannot end by itself
    await stack.dial(gateway)
    await stack.until(lambda: stack.engine.num_open_requests == 0)
    worker.gate.set()
    assert gateway.num_streams == 2
    assert not gateway.finished
    await stack.idle()


async def test_what_comes_late_on_a_stream_that_was_replaced_is_not_heard(stack: Stack) -> None:
    gateway = stack.engine.connect("g9", 9, b"")
    old = gateway.begin(stack.engine.serving(gateway))
    gateway.begin(stack.engine.serving(gateway))

    async def late() -> AsyncIterator[pb.SessionRequest]:
        yield pb.SessionRequest(submit=pb.Submit(request_num=1, prompt_token_ids=pack(PROMPT)), seq=1)

    await SchedulerServicer(stack.engine)._hear(gateway, old, late())
    assert not gateway.tickets


async def test_a_state_is_told_when_it_changes_and_once_to_every_stream() -> None:
    session, sent = GatewaySession("g0", 7, b""), list[pb.SessionResponse]()

    async def write(message: pb.SessionResponse) -> None:
        sent.append(message)

    away = ServingState(scheduler_incarnation=1, reason="away")
    for _ in range(2):
        writer = asyncio.create_task(session.write_to(write, session.begin(away)))
        for state in (away, away, ServingState(scheduler_incarnation=1, is_ready=True)):
            await asyncio.sleep(0)
            session.serving(state)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writer.cancel()
    assert [(message.state.reason, message.seq) for message in sent] == [("away", 1), ("", 2)] * 2


async def test_a_gateway_with_another_tokenizer_is_not_served(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    await stack.ready_gateway()
    stranger = FakeGateway(incarnation=8, tokenizer_digest=b"x" * 32)
    await stack.dial(stranger)
    await stranger.until(lambda: stranger.state.scheduler_incarnation)
    assert not stranger.state.ready
    assert "tokenizer_digest" in stranger.state.reason
    await stranger.submit(1, PROMPT)
    await stranger.until(lambda: 1 in stranger.rejected)
    assert stranger.rejected[1].reason == "TOKENIZER_MISMATCH"


async def test_two_gateways_get_their_own_tokens_only(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    first = await stack.ready_gateway()
    second = FakeGateway(incarnation=8)
    await stack.dial(second)
    await second.until(lambda: second.state.ready)
    await first.submit(1, PROMPT)
    await second.submit(1, [5, 6, 7])
    await first.end_of(1)
    await second.end_of(1)
    assert first.tokens[1] == continuation(PROMPT, 10)
    assert second.tokens[1] == continuation([5, 6, 7], 10)


async def test_unknown_numbers_are_ignored(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.cancel(99)
    await gateway.submit(1, PROMPT)
    assert (await gateway.end_of(1)).figures.num_output_tokens == 10


async def test_a_gateway_that_comes_back_twice_gets_the_logprobs_of_the_tokens_it_lacks() -> None:
    """The first return was to a new scheduler, which never saw the logprobs of the tokens brought along."""
    session = GatewaySession("g0", 7, b"")
    brought, since = [10, 11], [12, 13, 14]
    position = [PositionLogprobs(sampled=TokenLogprob(token_id=token_id)).SerializeToString() for token_id in since]
    submit = pb.Submit(request_num=1, prompt_token_ids=pack(PROMPT), output_token_ids=pack(brought))
    request = Request(
        identity=Identity(request_id="r"),
        token_ids=[*PROMPT, *brought, *since],
        num_prompt_tokens=len(PROMPT),
        rules=StopRules(max_tokens=20),
    )
    ticket = Ticket(request=request, submission=submission(submit), gateway=session, trace=None, logprobs=position)
    sent: asyncio.Queue[pb.SessionResponse] = asyncio.Queue()
    writer = asyncio.create_task(session.write_to(sent.put, session.begin(ServingState(scheduler_incarnation=1))))
    session.attach_again(ticket, 3)
    await sent.get()  # the state
    events = (await sent.get()).events
    writer.cancel()
    assert list(unpack("token_ids", events.token_ids)) == [13, 14]
    assert [position.sampled.token_id for position in events.logprobs] == [13, 14]


async def test_what_happens_while_an_old_stream_is_slow_goes_to_the_new_one() -> None:
    session = GatewaySession("g0", 7, b"")
    is_taken, old, new = asyncio.Event(), list[pb.SessionResponse](), asyncio.Queue[pb.SessionResponse]()

    async def write_slowly(message: pb.SessionResponse) -> None:
        old.append(message)
        await is_taken.wait()

    old_stream = session.begin(ServingState(scheduler_incarnation=1))
    writers = [asyncio.create_task(session.write_to(write_slowly, old_stream))]
    await asyncio.sleep(0)  # it writes the state
    new_stream = session.begin(ServingState(scheduler_incarnation=1))
    session.rejected(5, failures.draining())
    is_taken.set()
    await asyncio.sleep(0)  # the old one has its turn first
    writers.append(asyncio.create_task(session.write_to(new.put, new_stream)))
    assert (await asyncio.wait_for(new.get(), 5)).HasField("state")
    events = (await asyncio.wait_for(new.get(), 5)).events
    for writer in writers:
        writer.cancel()
    assert [rejected.request_num for rejected in events.rejected] == [5]
    assert len(old) == 1
