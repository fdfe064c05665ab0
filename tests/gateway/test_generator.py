"""Requests on their way through the gateway, against a fake scheduler on real gRPC."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from gateway.config import Limits
from gateway.core.generation import (
    ChatMessage,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerationRequest,
    Sampling,
    Started,
    Stopping,
    TextChunk,
    TextPrompt,
    TokenPrompt,
)
from gateway.core.limits import ContextLengthExceeded, DuplicateRequest, InvalidParameter, UnknownModel
from octavo.errors import Failed
from octavo.scheduler.v1 import scheduler_pb2
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, asked, chunks_in, events_of, running_stack, text_in, until


async def test_a_call_is_started_chunks_finished(stack: Stack):
    events = await events_of(stack, asked("héllo ☃ ", max_tokens=20))
    started, *chunks, finished = events
    assert isinstance(started, Started)
    assert (started.model, started.num_prompt_tokens, started.num_cached_tokens) == ("tiny", 10, 3)
    assert text_in(chunks) == "héllo ☃ " * 2
    assert chunks_in(chunks)[-1].finish_reason is FinishReason.LENGTH
    assert isinstance(finished, Finished)
    assert (finished.usage.num_completion_tokens, finished.timing.num_preemptions) == (20, 2)


async def test_defaults_of_the_model_and_of_the_context_are_resolved(stack: Stack):
    async with aclosing(stack.generator.generate(asked("hello", max_tokens=None))) as events:
        await anext(events)
    (submit,) = stack.scheduler.submits
    assert submit.stopping.max_tokens == 4096 - 2
    assert list(submit.stopping.eos_token_ids) == [258]
    assert (submit.sampling.temperature, submit.sampling.top_k, submit.sampling.repetition_penalty) == (1.0, 40, 1.0)


async def test_an_end_of_sequence_token_ends_the_answer_and_is_not_shown(stack: Stack):
    events = await events_of(stack, GenerationRequest(prompt=TokenPrompt(token_ids=(65, 66, 258)), stopping=Stopping()))
    last = chunks_in(events)[-1]
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, 258)
    assert text_in(events) == await stack.generator.detokenize([65, 66])


async def test_a_stop_string_ends_the_answer_and_is_cancelled_in_the_scheduler(stack: Stack):
    events = await events_of(stack, asked("one two ", stopping=Stopping(stop_sequences=("two",))))
    last = chunks_in(events)[-1]
    assert (text_in(events), last.finish_reason, last.stop_sequence) == ("one ", FinishReason.STOP, "two")
    assert [cancel.reason for cancel in stack.scheduler.cancels] == [scheduler_pb2.CANCEL_REASON_STOP_STRING]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.num_completion_tokens == len("one two")
    assert finished.timing.num_preemptions == 2  # the scheduler's figures are waited for


async def test_leaving_early_cancels_in_the_scheduler(stack: Stack):
    async with aclosing(stack.generator.generate(asked(max_tokens=1000))) as events:
        async for event in events:
            if isinstance(event, TextChunk):
                break
    await until(lambda: len(stack.scheduler.cancels) == 1)
    assert stack.scheduler.cancels[0].reason == scheduler_pb2.CANCEL_REASON_CLIENT_GONE
    assert stack.session.num_open == 0


async def test_the_deadline_ends_the_call(stack: Stack):
    with pytest.raises(Failed) as failed:
        await events_of(stack, asked(max_tokens=4000, deadline_s=0.5))
    assert failed.value.failure.reason == "DEADLINE_EXCEEDED"
    await until(lambda: len(stack.scheduler.cancels) == 1)
    assert stack.scheduler.cancels[0].reason == scheduler_pb2.CANCEL_REASON_DEADLINE
    assert 0 < stack.scheduler.submits[0].remaining.ToMilliseconds() < 500


async def test_several_answers_share_the_prompt_and_have_seeds_of_their_own(stack: Stack):
    events = await events_of(stack, asked(n=3, max_tokens=6, sampling=Sampling(seed=7)))
    assert [text_in(events, index) for index in range(3)] == ["hello hello "] * 3
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.usage.num_prompt_tokens, finished.usage.num_completion_tokens) == (3, 18)
    seeds = [submit.sampling.seed for submit in stack.scheduler.submits]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_logprobs_stay_with_their_tokens(stack: Stack):
    events, plain = await asyncio.gather(
        events_of(stack, asked(max_tokens=5, num_logprobs=2)), events_of(stack, asked(max_tokens=5))
    )
    logprobs = [position for chunk in chunks_in(events) for position in chunk.logprobs]
    tokens = [token_id for chunk in chunks_in(events) for token_id in chunk.token_ids]
    assert [position.sampled.token_id for position in logprobs] == tokens
    assert [position.sampled.token for position in logprobs] == [b"hell", b"o", b" ", b"hell", b"o"]
    assert all(len(position.top) == 2 for position in logprobs)
    assert not any(chunk.logprobs for chunk in chunks_in(plain))


async def test_what_piles_up_behind_a_slow_reader_is_one_chunk(stack: Stack):
    async with aclosing(stack.generator.generate(asked(max_tokens=50))) as events:
        assert isinstance(await anext(events), Started)
        await until(lambda: stack.session.num_open == 0)
        rest = [event async for event in events]
    assert len(chunks_in(rest)) <= 2
    assert sum(len(chunk.token_ids) for chunk in chunks_in(rest)) == 50


async def test_a_lost_stream_repeats_and_loses_nothing(stack: Stack):
    stack.scheduler.step_s = 0.005
    request = asked("abcdefghij", max_tokens=100)
    task = asyncio.create_task(events_of(stack, request))
    for num_streams, num_tokens in ((2, 20), (3, 40)):
        await until(lambda wanted=num_tokens: stack.scheduler.num_generated(1) >= wanted)  # type: ignore[misc]
        stack.scheduler.is_cut.set()
        await until(lambda wanted=num_streams: len(stack.scheduler.hellos) == wanted)  # type: ignore[misc]
    assert text_in(await task) == "abcdefghij" * 10
    assert len({hello.incarnation for hello in stack.scheduler.hellos}) == 1
    submits = stack.scheduler.submits
    assert [submit.request_num for submit in submits] == [1, 1, 1]
    assert 0 < len(submits[1].output_token_ids) < len(submits[2].output_token_ids)


async def test_a_refusal_comes_before_anything_else(stack: Stack):
    stack.scheduler.refusal = scheduler_pb2.Failure(
        reason="QUEUE_FULL", message="1024 requests wait", metadata={"max_queue_len": "1024"}
    )
    with pytest.raises(Failed) as failed:
        await events_of(stack, asked())
    failure = failed.value.failure
    assert (failure.code.name, failure.reason, failure.retry_after_s) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 1.0)
    assert failure.metadata == {"max_queue_len": "1024"}


async def test_a_failure_in_mid_stream_is_raised(stack: Stack):
    stack.scheduler.failure = scheduler_pb2.Failure(reason="POISONED", message="it failed three times")
    with pytest.raises(Failed, match="three times") as failed:
        await events_of(stack, asked())
    assert failed.value.failure.code.name == "INTERNAL"


async def test_a_live_request_id_is_refused_and_free_again_afterwards(stack: Stack):
    request = asked(client_request_id="mine", tenant="a", max_tokens=500)
    async with aclosing(stack.generator.generate(request)) as events:
        await anext(events)
        with pytest.raises(DuplicateRequest, match="'mine'"):
            await events_of(stack, request)
        other_tenant = await events_of(stack, asked(client_request_id="mine", tenant="b"))
        assert isinstance(other_tenant[0], Started)
        assert other_tenant[0].request_id == "mine"
    assert (await events_of(stack, asked(client_request_id="mine", tenant="a")))[-1]


async def test_mistakes_are_told_before_anything_is_submitted(stack: Stack):
    with pytest.raises(InvalidParameter, match="temperature: must be 0 to 2, got 3"):
        await events_of(stack, asked(sampling=Sampling(temperature=3)))
    with pytest.raises(UnknownModel, match="served are: tiny, alias"):
        await events_of(stack, asked(model="other"))
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 4096 tokens"):
        await events_of(stack, asked("x" * 4096))
    assert stack.scheduler.submits == []


async def test_the_templates_own_words_reach_the_caller(stack: Stack):
    robot = ChatPrompt(messages=(ChatMessage(role="robot", content="hi"),))
    with pytest.raises(InvalidParameter, match="roles are system, user, assistant, not robot"):
        await events_of(stack, GenerationRequest(prompt=robot))


async def test_developer_is_another_word_for_system(stack: Stack):
    def chat(role: str) -> ChatPrompt:
        return ChatPrompt(messages=(ChatMessage(role=role, content="be brief"),))

    assert await stack.generator.tokenize(chat("developer")) == await stack.generator.tokenize(chat("system"))


async def test_more_calls_than_allowed_are_refused(tmp_path: Path):
    async with running_stack(tmp_path, FakeScheduler(), settings=Limits(max_concurrent_requests=1)) as stack:
        async with aclosing(stack.generator.generate(asked(max_tokens=500))) as events:
            await anext(events)
            with pytest.raises(Failed, match="1 requests are open here"):
                await events_of(stack, asked())
        assert await events_of(stack, asked())


async def test_draining_refuses_new_calls_and_finishes_the_running_one(stack: Stack):
    running = asyncio.create_task(events_of(stack, asked(max_tokens=200)))
    await until(lambda: stack.session.num_open == 1)
    draining = asyncio.create_task(stack.generator.drain())
    await asyncio.sleep(0)
    with pytest.raises(Failed) as refused:
        await events_of(stack, asked())
    assert (refused.value.failure.reason, refused.value.failure.retry_after_s) == ("SERVER_DRAINING", 1.0)
    assert (stack.readiness.is_ready, stack.readiness.reason) == (False, "draining")
    assert not draining.done()
    assert chunks_in(await running)[-1].finish_reason is FinishReason.LENGTH
    await draining


async def test_a_long_prompt_is_encoded_beside_the_event_loop(stack: Stack):
    token_ids = await stack.generator.tokenize(TextPrompt(text="hello " * 2000))
    short = await stack.generator.tokenize(TextPrompt(text="hello "))
    is_same = token_ids == short * 2000  # pytest would take minutes to explain a difference of this length
    assert is_same


async def test_metrics_show_the_answers_that_are_open_now(stack: Stack):
    def num_open() -> float | None:
        labels = {"model_name": "tiny", "engine": "0"}
        return stack.registry.get_sample_value("octavo_gateway_open_answers", labels)

    async with aclosing(stack.generator.generate(asked(n=2, max_tokens=200))) as events:
        await anext(events)
        assert num_open() == 2
    await until(lambda: num_open() == 0)


async def test_metrics_count_answers_and_tokens(stack: Stack):
    await events_of(stack, asked(n=2, max_tokens=6))

    def value(name: str, **labels: str) -> float | None:
        return stack.registry.get_sample_value(f"vllm:{name}", {"model_name": "tiny", "engine": "0", **labels})

    assert value("request_success_total", finished_reason="length") == 2
    assert value("request_success_total", finished_reason="abort") == 0
    assert value("request_generation_tokens_sum") == 12
    assert value("request_prompt_tokens_sum") == 3
    assert value("time_to_first_token_seconds_count") == 1
    assert value("inter_token_latency_seconds_count") == 10
    assert value("e2e_request_latency_seconds_count") == 1
