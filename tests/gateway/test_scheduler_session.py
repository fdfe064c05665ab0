"""The stream to the scheduler: late starts, lost streams, requests that wait, and readiness."""

import asyncio
import logging
from pathlib import Path

import pytest

from gateway import dialled_session, scheduler_session
from gateway.core.generation import Stopping
from gateway.core.submission import Ended, ResolvedSampling, ResolvedStopping, Submission
from gateway.inbox import Inbox
from octavo.errors import Failed
from octavo.scheduler.v1 import scheduler_pb2
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, asked, events_of, running_scheduler, running_stack, text_in, until

A_SUBMISSION = Submission(
    prompt_token_ids=[1, 2], client_request_id="", tenant="", priority=0, deadline_at_s=None, cache_salt="",
    cache_bypass=False, trace_context=b"",
    sampling=ResolvedSampling(
        temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0,
        repetition_penalty=1.0, seed=1, logit_bias={}, num_logprobs=None,
    ),
    stopping=ResolvedStopping(max_tokens=9, min_tokens=0, ignore_eos=True, eos_token_ids=(), stop_token_ids=()),
)  # fmt: skip


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


async def test_while_everybody_waits_for_somebody_it_is_not_ready_and_still_takes_requests(stack: Stack):
    reason = "requests at worker w0 wait for the KV cache service, which does not answer"
    stack.scheduler.state = scheduler_pb2.ServingState(ready=False, reason=reason, num_blocks=63, block_size=16)
    stack.scheduler.is_cut.set()
    await until(lambda: stack.readiness.reason == reason)
    assert stack.generator.serving_state.cause == "stalled"
    assert text_in(await events_of(stack, asked("ab", max_tokens=4))) == "abab"


async def test_a_scheduler_that_was_told_to_drain_is_the_cause_and_no_error(
    stack: Stack, caplog: pytest.LogCaptureFixture
):
    model = stack.scheduler.state.model
    told = scheduler_pb2.ServingState(ready=False, refusing=True, reason="draining", model=model, num_blocks=63)
    stack.scheduler.state = told
    stack.scheduler.is_cut.set()
    await until(lambda: stack.readiness.reason == "draining")
    assert stack.generator.serving_state.cause == "draining"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_scheduler_that_is_silent_is_dialled_again_and_its_requests_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dialled_session, "SILENCE_S", 0.5)
    scheduler = FakeScheduler()
    scheduler.beat_s = 0.1
    async with running_stack(tmp_path, scheduler) as stack:
        scheduler.beat_s, scheduler.step_s = 60, 1.5
        waiting = asyncio.create_task(events_of(stack, asked("ab", max_tokens=4)))
        await until(lambda: len(scheduler.hellos) == 2)
        scheduler.beat_s, scheduler.step_s = 0.1, 0.001
        assert text_in(await asyncio.wait_for(waiting, timeout=10)) == "abab"


async def test_an_answer_stopped_while_nobody_is_connected_ends_at_once(tmp_path: Path):
    scheduler = FakeScheduler()
    async with running_stack(tmp_path, scheduler, starts_scheduler=False) as stack:
        async with running_scheduler(scheduler, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
        await until(lambda: not stack.readiness.is_ready)
        inbox = Inbox()
        number = stack.session.submit(A_SUBMISSION, inbox)
        stack.session.stop(number)
        (delivery,) = await inbox.take(timeout_s=1)
        assert isinstance(delivery.update, Ended)
        assert stack.session.num_open == 0
        async with running_scheduler(scheduler, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
        assert not scheduler.submits


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


async def test_when_a_scheduler_hands_over_what_runs_and_what_comes_goes_on_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    first, second = FakeScheduler(), FakeScheduler()
    async with running_stack(tmp_path, first, starts_scheduler=False) as stack:
        async with running_scheduler(first, tmp_path):
            await asyncio.wait_for(stack.readiness.ready(), timeout=5)
            running = asyncio.create_task(events_of(stack, asked("ab", max_tokens=400)))
            await until(lambda: first.num_generated(1) > 10)
            first.is_leaving = True
            await until(lambda: not stack.readiness.is_ready)
            waiting = asyncio.create_task(events_of(stack, asked("cd", max_tokens=4)))
            await until(lambda: stack.session.num_open == 2)
            first.is_cut.set()
        async with running_scheduler(second, tmp_path):
            assert text_in(await asyncio.wait_for(running, timeout=10)) == "ab" * 200
            assert text_in(await asyncio.wait_for(waiting, timeout=10)) == "cdcd"
            messages = [record.message for record in caplog.records]
    assert [submit.request_num for submit in first.submits] == [1]
    assert [(submit.request_num, submit.was_submitted) for submit in second.submits] == [(1, True), (2, False)]
    assert "scheduler_left" in messages
    assert "scheduler_lost" not in messages


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
