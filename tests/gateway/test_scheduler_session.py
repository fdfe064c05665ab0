"""The stream to the scheduler: late starts, lost streams, requests that wait, and readiness."""

import asyncio
from pathlib import Path

import pytest

from gateway import scheduler_session
from gateway.core.generation import Stopping
from octavo.errors import Failed
from octavo.scheduler.v1 import scheduler_pb2
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, asked, events_of, running_scheduler, running_stack, text_in, until


async def test_hello_names_the_gateway_and_its_tokenizer(stack: Stack):
    (hello,) = stack.scheduler.hellos
    assert (hello.gateway_id, hello.tokenizer_digest) == ("test", b"digest")
    assert hello.incarnation > 0


async def test_a_gateway_may_start_before_its_scheduler(tmp_path: Path):
    scheduler = FakeScheduler()
    async with running_stack(tmp_path, scheduler, starts_scheduler=False) as stack:
        with pytest.raises(Failed, match=r"no connection to the scheduler|does not answer yet") as refused:
            await events_of(stack, asked())
        assert refused.value.failure.reason == "MODEL_LOADING"
        async with running_scheduler(scheduler, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
            assert text_in(await events_of(stack, asked("ab", max_tokens=4))) == "abab"


async def test_readiness_follows_the_scheduler(stack: Stack):
    stack.scheduler.state = scheduler_pb2.ServingState(ready=False, reason="no worker is attached")
    stack.scheduler.is_cut.set()
    await until(lambda: stack.readiness.reason == "no worker is attached")
    assert stack.generator.serving_state.cause == "no_worker"
    assert stack.generator.model("alias").max_model_len == 4096  # what was known of the model stays


async def test_a_gateway_that_alone_is_not_served_is_an_error_that_says_what_to_do(
    stack: Stack, caplog: pytest.LogCaptureFixture
):
    reason = "tokenizer_digest of gateway test differs; start it with their --model"
    stack.scheduler.state = scheduler_pb2.ServingState(ready=False, reason=reason, model={"name": "other"})
    stack.scheduler.refusal = scheduler_pb2.Failure(reason="TOKENIZER_MISMATCH", message=reason)
    stack.scheduler.is_cut.set()
    await until(lambda: stack.readiness.reason == reason)
    with pytest.raises(Failed) as refused:
        await events_of(stack, asked())
    failure = refused.value.failure
    assert (failure.code.name, failure.reason, failure.retry_after_s) == (
        "FAILED_PRECONDITION",
        "TOKENIZER_MISMATCH",
        None,
    )
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert vars(record)["octavo_fields"] == {"ready": False, "reason": reason}


async def test_requests_wait_while_the_scheduler_restarts(tmp_path: Path):
    first, second = FakeScheduler(), FakeScheduler()
    async with running_stack(tmp_path, first, starts_scheduler=False) as stack:
        async with running_scheduler(first, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
        await until(lambda: not stack.readiness.is_ready)
        waiting = asyncio.create_task(events_of(stack, asked("ab", max_tokens=4)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with running_scheduler(second, tmp_path):
            assert text_in(await asyncio.wait_for(waiting, timeout=5)) == "abab"


async def test_requests_fail_when_the_scheduler_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_session, "GIVE_UP_AFTER_S", 0.3)
    scheduler = FakeScheduler()
    async with running_stack(tmp_path, scheduler, starts_scheduler=False) as stack:
        async with running_scheduler(scheduler, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
        await until(lambda: not stack.readiness.is_ready)
        with pytest.raises(Failed) as failed:
            await asyncio.wait_for(events_of(stack, asked()), timeout=5)
    assert failed.value.failure.reason == "SCHEDULER_UNREACHABLE"
    assert failed.value.failure.code.name == "UNAVAILABLE"


async def test_a_stopped_answer_whose_end_is_lost_with_the_stream_still_ends(stack: Stack):
    stack.scheduler.step_s = 0.05
    request = asked("abcdefgh", stopping=Stopping(max_tokens=1000, stop_sequences=("ef",)))
    ending = asyncio.create_task(events_of(stack, request))
    await until(lambda: bool(stack.scheduler.cancels))
    stack.scheduler.is_cut.set()  # before the next step, which would have told the end
    assert text_in(await asyncio.wait_for(ending, timeout=0.9)) == "abcd"
    await until(lambda: len(stack.scheduler.hellos) == 2)
    assert len(stack.scheduler.submits) == 1


async def test_256_calls_at_once_get_their_own_tokens(stack: Stack):
    texts = [f"request number {number} " for number in range(256)]
    answers = await asyncio.gather(*(events_of(stack, asked(text, max_tokens=len(text))) for text in texts))
    assert all(text_in(events).startswith(text) for events, text in zip(answers, texts, strict=True))
    assert stack.session.num_open == 0
