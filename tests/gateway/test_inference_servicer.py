"""octavo.inference.v1 over real gRPC: what a client sends and sees."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct

from gateway.config import Limits
from octavo import errors
from octavo.inference.v1 import inference_pb2 as pb
from octavo.inference.v1 import inference_pb2_grpc
from octavo.scheduler.v1 import scheduler_pb2
from tests.fakes.scheduler import FakeScheduler
from tests.gateway.stack import Stack, running_stack, until


def asked(text: str = "hello ", max_tokens: int = 6, **more: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, stopping=pb.StopParams(max_tokens=max_tokens), **more)


async def failure_of(call: Any) -> errors.Failure:
    """How a call fails, unary or stream."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await _ended(call)
    return errors.from_rpc_error(failed.value)


async def _ended(call: Any) -> None:
    if not isinstance(call, grpc.aio.UnaryStreamCall):
        await call
        return
    async for _ in call:
        pass


async def test_a_stream_is_started_then_chunks_then_finished(stack: Stack):
    messages = [message async for message in stack.stub.Generate(asked(output=pb.OutputOptions(token_ids=True)))]
    kinds = [message.WhichOneof("event") for message in messages]
    assert kinds == ["started", *["chunk"] * (len(kinds) - 2), "finished"]
    assert messages[0].started.model == "tiny"
    chunks = [message.chunk for message in messages[1:-1]]
    assert "".join(chunk.text for chunk in chunks) == "hello hello "
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == [261, 78, 220] * 2
    assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert messages[-1].finished.usage == pb.Usage(prompt_tokens=3, completion_tokens=6, cached_tokens=3)
    assert messages[-1].finished.timing.time_to_first_token.ToNanoseconds() > 0


async def test_one_message_holds_the_same_with_every_answer_in_order(stack: Stack):
    request = asked(sampling=pb.SamplingParams(n=3), output=pb.OutputOptions(top_logprobs=1))
    answer = await stack.stub.GenerateOnce(pb.GenerateOnceRequest(request=request))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.text for choice in answer.choices} == {"hello hello "}
    assert [position.sampled.token for position in answer.choices[0].logprobs] == [b"hell", b"o", b" "] * 2
    assert answer.finished.usage.completion_tokens == 18
    assert not answer.choices[0].token_ids


async def test_a_stop_sequence_is_named_and_not_shown(stack: Stack):
    request = pb.GenerateRequest(text="one two ", stopping=pb.StopParams(stop_sequences=["two"]))
    answer = await stack.stub.GenerateOnce(pb.GenerateOnceRequest(request=request))
    (choice,) = answer.choices
    assert (choice.text, choice.stop_sequence, choice.finish_reason) == ("one ", "two", pb.FINISH_REASON_STOP)


async def test_a_client_that_cancels_is_cancelled_in_the_scheduler(stack: Stack):
    call = stack.stub.Generate(asked(max_tokens=4000))
    async for message in call:
        if message.WhichOneof("event") == "chunk":
            break
    call.cancel()
    await until(lambda: len(stack.scheduler.cancels) == 1)
    assert stack.scheduler.cancels[0].reason == scheduler_pb2.CANCEL_REASON_CLIENT_GONE
    assert stack.session.num_open == 0


async def test_a_deadline_ends_the_call_and_the_request(stack: Stack):
    failure = await failure_of(stack.stub.Generate(asked(max_tokens=4000), timeout=1))
    assert failure.code == grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(stack.scheduler.cancels) == 1)
    assert stack.session.num_open == 0


async def test_a_full_queue_says_of_what_and_when_to_come_back(stack: Stack):
    stack.scheduler.refusal = scheduler_pb2.Failure(
        reason="QUEUE_FULL", message="9 wait", metadata={"num_waiting": "9"}, quota_subject="tokens",
        retry_after=timedelta(seconds=2.5),
    )  # fmt: skip
    call = stack.stub.Generate(asked())
    assert await failure_of(call) == errors.Failure(
        code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        reason="QUEUE_FULL",
        message="9 wait",
        metadata={"num_waiting": "9"},
        retry_after_s=2.5,
        quota_subject="tokens",
    )
    assert ("grpc-retry-pushback-ms", "2500") in [tuple(pair) for pair in await call.trailing_metadata()]


@pytest.mark.parametrize(
    ("reason", "code"), [("DEADLINE_UNREACHABLE", "DEADLINE_EXCEEDED"), ("NO_PROGRESS", "UNAVAILABLE")]
)
async def test_what_the_scheduler_cannot_do_in_time_has_its_code(stack: Stack, reason: str, code: str):
    stack.scheduler.refusal = scheduler_pb2.Failure(reason=reason, message="no")
    failure = await failure_of(stack.stub.Generate(asked()))
    assert (failure.code.name, failure.reason) == (code, reason)


async def test_nothing_is_sent_before_the_request_is_admitted(stack: Stack):
    stack.scheduler.refusal = scheduler_pb2.Failure(reason="SERVER_DRAINING", message="it drains")
    call = stack.stub.Generate(asked())
    failure = await failure_of(call)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
    assert failure.retry_after_s == 1.0
    assert tuple(await call.initial_metadata()) == ()


async def test_the_request_id_comes_back_with_headers_and_with_errors(stack: Stack):
    metadata = (("x-request-id", "abc"), ("x-tenant-id", "t"), ("x-priority", "-3"))
    call = stack.stub.Generate(asked(), metadata=metadata)
    messages = [message async for message in call]
    assert messages[0].started.request_id == "abc"
    assert ("x-request-id", "abc") in [tuple(pair) for pair in await call.initial_metadata()]
    (submit,) = stack.scheduler.submits
    assert (submit.client_request_id, submit.tenant, submit.priority) == ("abc", "t", -3)
    refused = stack.stub.Generate(asked(model="other"), metadata=metadata)
    assert (await failure_of(refused)).reason == "MODEL_NOT_FOUND"
    assert ("x-request-id", "abc") in [tuple(pair) for pair in await refused.trailing_metadata()]


async def test_the_priority_of_the_message_wins(stack: Stack):
    await stack.stub.GenerateOnce(pb.GenerateOnceRequest(request=asked(priority=0)), metadata=(("x-priority", "5"),))
    assert stack.scheduler.submits[0].priority == 0


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (pb.GenerateRequest(), "INVALID_PARAMETER", "prompt"),
        (asked(""), "INVALID_PARAMETER", "prompt"),
        (asked(sampling=pb.SamplingParams(temperature=2.5)), "INVALID_PARAMETER", "temperature"),
        (asked(sampling=pb.SamplingParams(n=0)), "INVALID_PARAMETER", "n"),
        (asked(output=pb.OutputOptions(top_logprobs=21)), "INVALID_PARAMETER", "top_logprobs"),
        (asked(max_tokens=0), "INVALID_PARAMETER", "max_tokens"),
        (asked("x" * 5000), "CONTEXT_LENGTH_EXCEEDED", "prompt"),
    ],
)
async def test_mistakes_are_invalid_arguments_with_the_field(
    stack: Stack, request_: pb.GenerateRequest, reason: str, field: str
):
    failure = await failure_of(stack.stub.Generate(request_))
    assert (failure.code, failure.reason, failure.field) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)


async def test_an_unknown_model_is_not_found_and_names_those_there_are(stack: Stack):
    failure = await failure_of(stack.stub.GetModel(pb.GetModelRequest(name="other")))
    assert (failure.code, failure.metadata) == (grpc.StatusCode.NOT_FOUND, {"available": "tiny, alias"})


async def test_a_live_request_id_already_exists(stack: Stack):
    call = stack.stub.Generate(asked(max_tokens=4000, request_id="mine"))
    await call.read()
    failure = await failure_of(stack.stub.Generate(asked(request_id="mine")))
    assert (failure.code, failure.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    call.cancel()


async def test_a_chat_goes_through_the_template(stack: Stack):
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
    answer = await stack.stub.Tokenize(pb.TokenizeRequest(chat=chat))
    text = await stack.stub.Detokenize(pb.DetokenizeRequest(token_ids=answer.token_ids))
    assert text.text == "<|im_start|>user:hi<|im_end|><|im_start|>assistant:"
    assert answer.max_model_len == 4096


async def test_the_last_message_of_a_chat_can_be_continued(stack: Stack):
    messages = [pb.ChatMessage(role="user", content="hi"), pb.ChatMessage(role="assistant", content="Well,")]
    chat = pb.ChatPrompt(messages=messages, continue_final_message=True)
    answer = await stack.stub.Tokenize(pb.TokenizeRequest(chat=chat))
    text = await stack.stub.Detokenize(pb.DetokenizeRequest(token_ids=answer.token_ids))
    assert text.text.endswith("<|im_start|>assistant:Well,")


async def test_what_a_template_refuses_is_the_callers_mistake(stack: Stack):
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="robot", content="hi")])
    failure = await failure_of(stack.stub.Generate(pb.GenerateRequest(chat=chat)))
    assert (failure.code, failure.field) == (grpc.StatusCode.INVALID_ARGUMENT, "messages")
    assert "roles are system, user, assistant, not robot" in failure.message


async def test_a_request_cannot_bring_its_own_template(stack: Stack):
    kwargs = Struct()
    kwargs.update({"chat_template": "{{ 1 }}"})
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")], template_kwargs=kwargs)
    failure = await failure_of(stack.stub.Tokenize(pb.TokenizeRequest(chat=chat)))
    assert failure.field == "chat_template_kwargs"


async def test_template_arguments_that_are_not_json_are_the_callers_mistake(stack: Stack):
    kwargs = Struct()
    kwargs.update({"x": float("nan")})
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")], template_kwargs=kwargs)
    for call in (
        stack.stub.Tokenize(pb.TokenizeRequest(chat=chat)),
        stack.stub.Generate(pb.GenerateRequest(chat=chat)),
    ):
        failure = await failure_of(call)
        assert (failure.code, failure.field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat_template_kwargs")


async def test_models_are_listed_with_aliases(stack: Stack):
    (model,) = (await stack.stub.ListModels(pb.ListModelsRequest())).models
    assert (model.name, list(model.aliases), model.max_model_len, model.ready) == ("tiny", ["alias"], 4096, True)
    assert (await stack.stub.GetModel(pb.GetModelRequest(name="alias"))).model == model
    failure = await failure_of(stack.stub.ListModels(pb.ListModelsRequest(page_token="x")))
    assert failure.field == "page_token"


async def test_a_client_that_reads_nothing_is_cancelled(tmp_path: Path):
    narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))  # its window stays at 64 KiB
    request = asked("x" * 200, max_tokens=3000, output=pb.OutputOptions(top_logprobs=20))
    async with (
        running_stack(tmp_path, FakeScheduler(), settings=Limits(stalled_client_s=0.3)) as stack,
        grpc.aio.insecure_channel(f"unix:{tmp_path}/gateway.sock", options=narrow) as channel,
    ):
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        await call.read()
        await until(lambda: len(stack.scheduler.cancels) == 1)
        assert stack.session.num_open == 0
        call.cancel()
