"""A scheduler that ends leaves everything to the next one: nobody is refused, and nothing is lost or sent twice."""

import asyncio
import logging
from pathlib import Path

import pytest

from scheduler_service import engine
from scheduler_service.core.plan import Limits
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.scheduler_service import stack as stacks
from tests.scheduler_service.stack import Stack
from tests.scheduler_service.test_workers import PROMPT, all_right, three_running


class Served:
    """One worker and one gateway with three requests that run."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.worker = FakeWorker()
        self.gateway = FakeGateway()
        self._streams: list[asyncio.Task[object]] = []

    async def dial(self) -> None:
        self._streams = [await self.stack.dial(self.worker), await self.stack.dial(self.gateway)]
        await self.gateway.until(lambda: self.gateway.state.ready)

    async def streams_end_well(self) -> None:
        """Raises what a stream failed with."""
        async with asyncio.timeout(5):
            await asyncio.gather(*self._streams)

    async def next_scheduler(self) -> None:
        """Everybody dials it, and the gateway submits again what is open."""
        await self.stack.stop_scheduler()
        await self.stack.start_scheduler()
        await self.dial()
        for number in range(3):
            await self.gateway.submit(number, [*PROMPT, number], max_tokens=200, was_submitted=True)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.gateway.tokens.values()))

    @property
    def num_steps(self) -> int:
        return sum(message.HasField("step") for message in self.worker.received)


@pytest.fixture
async def served(stack: Stack) -> Served:
    served = Served(stack)
    await served.dial()
    await three_running(stack, served.gateway)
    return served


async def test_the_next_scheduler_goes_on_where_this_one_ended(served: Served) -> None:
    await served.stack.engine.hand_over()
    await served.streams_end_well()
    assert served.gateway.state.draining
    assert not served.gateway.state.ready
    assert not served.gateway.finished
    await served.next_scheduler()
    await all_right(served.gateway)
    assert not served.gateway.rejected


async def test_what_the_steps_in_hand_bring_is_delivered_and_no_step_follows(served: Served) -> None:
    served.worker.gate.clear()
    await asyncio.sleep(0.1)
    num_tokens, num_steps = served.num_tokens, served.num_steps
    handing_over = asyncio.create_task(served.stack.engine.hand_over())
    await served.gateway.until(lambda: served.gateway.state.draining)
    served.worker.gate.set()
    await handing_over
    await served.streams_end_well()
    assert served.num_tokens > num_tokens
    assert served.num_steps == num_steps


async def test_a_step_that_takes_too_long_is_not_waited_for(served: Served) -> None:
    served.worker.gate.clear()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(engine.HANDOVER_S + 2):
        await served.stack.engine.hand_over()
    await served.streams_end_well()
    served.worker.gate.set()
    await served.next_scheduler()
    await all_right(served.gateway)


async def test_what_is_submitted_to_a_scheduler_that_leaves_is_kept_for_the_next(served: Served) -> None:
    served.worker.gate.clear()
    handing_over = asyncio.create_task(served.stack.engine.hand_over())
    await served.gateway.until(lambda: served.gateway.state.draining)
    await served.gateway.submit(9, PROMPT)
    served.worker.gate.set()
    await handing_over
    await served.streams_end_well()
    assert not served.gateway.rejected
    assert not served.gateway.tokens[9]
    await served.next_scheduler()
    await served.gateway.submit(9, PROMPT)
    await served.gateway.end_of(9)
    assert served.gateway.tokens[9] == continuation(PROMPT, 10)


async def test_a_scheduler_that_leaves_takes_no_gateway(served: Served) -> None:
    await served.stack.engine.hand_over()
    late = FakeGateway(incarnation=8)
    with pytest.raises(Exception, match="shutting down"):
        await (await served.stack.dial(late))
    assert late.num_streams == 0


async def test_a_drain_that_somebody_waits_for_ends_with_the_process(served: Served) -> None:
    draining = asyncio.create_task(served.stack.engine.drain())
    await served.gateway.until(lambda: served.gateway.state.reason == "draining")
    assert not served.gateway.state.draining  # the process stays
    await served.stack.engine.hand_over()
    assert await asyncio.wait_for(draining, 5) == 3


async def test_a_handover_is_no_alarm(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await served.stack.engine.hand_over()
    await served.streams_end_well()
    await served.stack.stop_scheduler()
    assert "handed_over" in [record.message for record in caplog.records]
    ours = [record for record in caplog.records if record.name.startswith("scheduler_service")]
    assert not [record.message for record in ours if record.levelno > logging.INFO]


async def test_the_queue_s_bound_refuses_newcomers_and_nobody_who_was_taken_before(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=Limits(max_queue_len=1, max_num_seqs=1)) as stack:
        gateway = FakeGateway()
        await stack.dial(gateway)
        await gateway.until(lambda: gateway.num_streams)
        for number in range(3):
            await gateway.submit(number, [*PROMPT, number], was_submitted=True)
        await gateway.submit(3, [*PROMPT, 3])
        await gateway.until(lambda: gateway.rejected)
        await stack.dial(FakeWorker())
        for number in range(3):
            await gateway.end_of(number)
            assert gateway.tokens[number] == continuation([*PROMPT, number], 10)
        assert {number: failure.reason for number, failure in gateway.rejected.items()} == {3: "QUEUE_FULL"}
