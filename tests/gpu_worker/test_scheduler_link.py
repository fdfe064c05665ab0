"""The worker's side of the stream, against a real gRPC server: order, acknowledgements, redial, close, drain."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from gpu_worker import scheduler_link
from gpu_worker.core.step import StepResult
from gpu_worker.executor import StepExecutor
from gpu_worker.scheduler_link import SchedulerLink
from gpu_worker.startup import Ready
from octavo.health import Readiness
from octavo.worker.v1 import worker_pb2
from tests.fakes import scheduler_link_server
from tests.fakes.scheduler_link_server import SchedulerLinkServer, Stream, packed
from tests.gpu_worker import tiny_models
from tests.gpu_worker.tiny_models import greedy, random_ids

PROMPT = random_ids(1, 20)


@pytest.fixture
async def fake() -> AsyncIterator[SchedulerLinkServer]:
    async with scheduler_link_server.listening() as server:
        yield server


@pytest.fixture
def ready(gqa_folder: Any) -> Ready:
    return tiny_models.ready(tiny_models.files_of(gqa_folder))


@asynccontextmanager
async def linked(fake: SchedulerLinkServer, ready: Ready, reported: list[StepResult]) -> AsyncIterator[SchedulerLink]:
    link = SchedulerLink(
        ready.identity,
        StepExecutor(ready.runner),
        scheduler_addr=fake.address,
        readiness=Readiness(),
        report=reported.append,
    )
    running = asyncio.ensure_future(link.run())
    try:
        yield link
    finally:
        link.leave()
        await asyncio.wait_for(running, 10)


async def attached(fake: SchedulerLinkServer) -> Stream:
    return await asyncio.wait_for(fake.streams.get(), 10)


async def result_of(stream: Stream) -> worker_pb2.StepResult:
    return await asyncio.wait_for(stream.results.get(), 10)


def first_step(seq: int = 1, *, handle: int = 1) -> worker_pb2.Step:
    new = worker_pb2.NewRequest(
        handle=handle, request_id="r", token_ids=packed(*PROMPT), num_prompt_tokens=20, block_ids=packed(1, 2, 3)
    )
    new.sampling.top_p = new.sampling.repetition_penalty = 1.0
    return worker_pb2.Step(
        session=1, step=seq, seq=seq, handles=packed(handle), num_scheduled_tokens=packed(20), new_requests=[new]
    )


def next_step(seq: int, acked_seq: int = 0) -> worker_pb2.Step:
    return worker_pb2.Step(session=1, step=seq, seq=seq, acked_seq=acked_seq)


def tokens_of(result: worker_pb2.StepResult) -> list[int]:
    ids: list[int] = np.frombuffer(result.token_ids, "<u4").tolist()
    return ids


async def test_hello_says_who_and_what(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []) as link:
        hello = (await attached(fake)).hello
    assert hello.worker_id == ready.identity.worker_id
    assert (hello.incarnation, hello.session, hello.last_executed_seq) == (link.incarnation, 1, 0)
    assert (hello.num_blocks, hello.max_num_batched_tokens) == (64, 512)
    assert (hello.model.max_model_len, hello.model.vocab_size) == (512, 512)
    fingerprint = hello.fingerprint
    assert (fingerprint.hash_scheme, fingerprint.block_size, fingerprint.kv_dtype) == (1, 16, "float32")
    assert len(fingerprint.model_digest) == len(fingerprint.tokenizer_digest) == 32


async def test_steps_sent_ahead_come_back_in_order(fake: SchedulerLinkServer, ready: Ready, gqa_oracle: Any) -> None:
    reported: list[StepResult] = []
    async with linked(fake, ready, reported):
        stream = await attached(fake)
        stream.send(step=first_step())
        for seq in range(2, 13):
            stream.send(step=next_step(seq))
        results = [await result_of(stream) for _ in range(12)]
    assert [result.seq for result in results] == list(range(1, 13))
    assert [tokens_of(result)[0] for result in results] == greedy(gqa_oracle, PROMPT, 12)
    assert [result.seq for result in reported] == list(range(1, 13))
    assert all(result.timing.forward_us > 0 for result in results)


async def test_after_a_gap_it_dials_again_and_goes_on_where_it_stood(
    fake: SchedulerLinkServer, ready: Ready, gqa_oracle: Any
) -> None:
    reported: list[StepResult] = []
    async with linked(fake, ready, reported) as link:
        stream = await attached(fake)
        stream.send(step=first_step())
        stream.send(step=next_step(3))
        again = await attached(fake)
        assert (again.hello.incarnation, again.hello.session) == (link.incarnation, 2)
        assert (again.hello.last_executed_seq, len(again.hello.kept_results)) == (1, 1)
        for seq in (2, 3):
            again.send(step=next_step(seq))
            await result_of(again)
    assert [result.token_ids[0] for result in reported] == greedy(gqa_oracle, PROMPT, 3)


async def test_steps_that_change_places_are_a_gap_too(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        for step in (first_step(), next_step(3), next_step(2)):
            stream.send(step=step)
        assert (await attached(fake)).hello.last_executed_seq == 1


async def test_a_step_that_comes_twice_runs_once(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        for step in (first_step(), first_step(), next_step(2), next_step(2), first_step()):
            stream.send(step=step)
        beat = await asyncio.wait_for(stream.heartbeats.get(), 2)
        assert (beat.last_received_seq, beat.last_executed_seq) == (2, 2)
        assert [(await result_of(stream)).seq for _ in range(2)] == [1, 2]
        assert stream.results.empty()


async def test_a_stream_that_does_not_begin_with_welcome_is_not_used(fake: SchedulerLinkServer, ready: Ready) -> None:
    fake.welcomes = False
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        fake.welcomes = True
        assert (await attached(fake)).hello.last_executed_seq == 0


async def test_a_step_whose_slots_differ_is_void_and_its_requests_may_come_whole(
    fake: SchedulerLinkServer, ready: Ready, gqa_oracle: Any
) -> None:
    """Scenario 95: what the step would write into wrong blocks is not written."""
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        stream.send(step=worker_pb2.Step(session=1, step=2, seq=2, acked_seq=1, slots_digest=5))
        result = await result_of(stream)
        assert (result.status, result.message[:13]) == (worker_pb2.STEP_STATUS_VOID, "slots differ:")
        whole = first_step(3)
        whole.acked_seq, whole.new_requests[0].epoch = 2, 1
        stream.send(step=whole)
        assert tokens_of(await result_of(stream)) == greedy(gqa_oracle, PROMPT, 1)


async def test_a_worker_that_drains_says_so_until_the_scheduler_lets_it_go(
    fake: SchedulerLinkServer, ready: Ready
) -> None:
    fake.releases = False
    async with linked(fake, ready, []) as link:
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        link.drain()
        beats = [await asyncio.wait_for(stream.heartbeats.get(), 2) for _ in range(3)]
        assert beats[-1].draining
        stream.send(step=next_step(2))
        assert (await result_of(stream)).seq == 2
        assert not stream.has_left
        stream.send(drain=worker_pb2.Drain())
        await asyncio.wait_for(stream.ended.wait(), 5)
        assert stream.has_left


async def test_a_worker_without_a_scheduler_drains_at_once(ready: Ready, unused_tcp_port: int) -> None:
    link = SchedulerLink(
        ready.identity,
        StepExecutor(ready.runner),
        scheduler_addr=f"127.0.0.1:{unused_tcp_port}",
        readiness=Readiness(),
        report=print,
    )
    running = asyncio.ensure_future(link.run())
    await asyncio.sleep(0)
    link.drain()
    await asyncio.wait_for(running, 5)


async def test_a_torn_step_is_a_fault(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=worker_pb2.Step(session=1, step=1, seq=1, handles=b"\x01\x00\x00"))
        result = await result_of(stream)
    assert result.status == worker_pb2.STEP_STATUS_FAULT
    assert "cannot be read" in result.message


async def test_the_heart_beats_while_nothing_runs(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        beats = [await asyncio.wait_for(stream.heartbeats.get(), 2) for _ in range(2)]
    assert [beat.last_executed_seq for beat in beats] == [1, 1]


async def test_after_a_broken_stream_the_session_counts_up_and_results_are_kept(
    fake: SchedulerLinkServer, ready: Ready, gqa_oracle: Any
) -> None:
    async with linked(fake, ready, []) as link:
        stream = await attached(fake)
        stream.send(step=first_step())
        stream.send(step=next_step(2))
        await result_of(stream)
        stream.send(step=next_step(3, acked_seq=1))
        for _ in range(2):
            await result_of(stream)
        stream.hang_up()
        again = await attached(fake)
        assert (again.hello.session, again.hello.incarnation) == (2, link.incarnation)
        assert again.hello.last_executed_seq == 3
        assert [result.seq for result in again.hello.kept_results] == [2, 3]
        again.send(step=next_step(3, acked_seq=1))  # the scheduler cannot know that it ran
        again.send(step=next_step(4, acked_seq=3))
        result = await result_of(again)
    assert result.seq == 4
    assert tokens_of(result) == greedy(gqa_oracle, PROMPT, 4)[3:]


async def test_welcome_acknowledges_too(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        fake.acked_seq = 1
        stream.hang_up()
        again = await attached(fake)
        again.hang_up()
        third = await attached(fake)
    assert [len(one.hello.kept_results) for one in (again, third)] == [1, 0]


async def test_close_starts_a_new_incarnation_with_nothing_in_it(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        stream.send(close=worker_pb2.Close(reason="silent for 3 s"))
        again = await attached(fake)
        assert again.hello.incarnation != stream.hello.incarnation
        assert (again.hello.session, again.hello.last_executed_seq, len(again.hello.kept_results)) == (1, 0, 0)
        assert len(ready.runner.state) == 0
        again.send(step=first_step())
        assert (await result_of(again)).status == worker_pb2.STEP_STATUS_OK


async def test_reset_forgets_the_requests_and_keeps_the_numbering(fake: SchedulerLinkServer, ready: Ready) -> None:
    async with linked(fake, ready, []):
        stream = await attached(fake)
        stream.send(step=first_step())
        stream.send(reset=worker_pb2.Reset())
        stream.send(step=first_step(2))
        assert [(await result_of(stream)).status for _ in range(2)] == [worker_pb2.STEP_STATUS_OK] * 2


async def test_drain_finishes_the_steps_in_hand_and_ends_the_stream(fake: SchedulerLinkServer, ready: Ready) -> None:
    link = SchedulerLink(
        ready.identity, StepExecutor(ready.runner), scheduler_addr=fake.address, readiness=Readiness(), report=print
    )
    running = asyncio.ensure_future(link.run())
    stream = await attached(fake)
    stream.send(step=first_step())
    for seq in range(2, 6):
        stream.send(step=next_step(seq))
    stream.send(drain=worker_pb2.Drain())
    assert [(await result_of(stream)).seq for _ in range(5)] == [1, 2, 3, 4, 5]
    await asyncio.wait_for(stream.ended.wait(), 5)
    assert stream.has_left
    await asyncio.wait_for(running, 5)


async def test_steps_that_come_after_it_began_to_leave_are_not_run(fake: SchedulerLinkServer, ready: Ready) -> None:
    """The scheduler keeps one step waiting behind the one that runs: the worker would never be done."""
    async with linked(fake, ready, []) as link:
        stream = await attached(fake)
        stream.send(step=first_step())
        await result_of(stream)
        link.leave()
        for seq in range(2, 30):
            stream.send(step=next_step(seq))
        await asyncio.wait_for(stream.ended.wait(), 5)
        assert stream.has_left
        assert stream.results.qsize() < 28


async def test_a_bug_in_the_heart_ends_the_worker_loudly(
    fake: SchedulerLinkServer, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", "half a second")
    link = SchedulerLink(
        ready.identity, StepExecutor(ready.runner), scheduler_addr=fake.address, readiness=Readiness(), report=print
    )
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(link.run(), 5)
    assert ended.group_contains(TypeError)


async def test_a_scheduler_that_ends_the_stream_has_left_and_is_not_missed_at_once(
    fake: SchedulerLinkServer, ready: Ready, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with linked(fake, ready, []):
        (await attached(fake)).hang_up()
        await attached(fake)
    events = [record.getMessage() for record in caplog.records]
    assert "scheduler_left" in events
    assert "scheduler_missing" not in events


async def test_a_stream_that_breaks_is_missed_at_once(
    fake: SchedulerLinkServer, ready: Ready, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(fake, ready, []):
        (await attached(fake)).break_off()
        await attached(fake)
    assert "scheduler_missing" in [record.getMessage() for record in caplog.records]


async def test_it_waits_for_a_scheduler_that_is_not_there_yet(ready: Ready, unused_tcp_port: int) -> None:
    readiness = Readiness()
    link = SchedulerLink(
        ready.identity,
        StepExecutor(ready.runner),
        scheduler_addr=f"127.0.0.1:{unused_tcp_port}",
        readiness=readiness,
        report=print,
    )
    running = asyncio.ensure_future(link.run())
    await asyncio.wait_for(readiness.changed(), 5)
    assert f"no scheduler at 127.0.0.1:{unused_tcp_port}" in readiness.reason
    async with scheduler_link_server.listening(f"127.0.0.1:{unused_tcp_port}") as fake:
        assert (await attached(fake)).hello.session >= 2
        await asyncio.wait_for(readiness.ready(), 5)
        link.leave()
        await asyncio.wait_for(running, 5)
