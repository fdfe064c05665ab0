"""Messages become values and back without a change of meaning."""

import numpy as np

from gpu_worker import wire
from gpu_worker.core.step import PositionLogprobs, StepResult, StepStatus, StepTiming, TokenLogprob
from octavo.common.v1 import common_pb2
from octavo.worker.v1 import worker_pb2


def packed(*values: int) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


def request(*, ignore_eos: bool = False) -> worker_pb2.NewRequest:
    return worker_pb2.NewRequest(
        handle=4_000_000_000,
        request_id="g1-7",
        epoch=2,
        token_ids=packed(5, 6, 7),
        num_prompt_tokens=2,
        block_ids=packed(9, 8),
        num_computed_tokens=1,
        sampling=common_pb2.SamplingParams(
            temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, presence_penalty=1, frequency_penalty=2,
            repetition_penalty=1.5, seed=2**64 - 1, logit_bias={3: -1.5}, num_logprobs=0,
        ),
        stopping=common_pb2.StoppingParams(
            min_tokens=4, eos_token_ids=[2], stop_token_ids=[11], ignore_eos=ignore_eos
        ),
    )  # fmt: skip


def test_a_step_is_read_column_by_column() -> None:
    message = worker_pb2.Step(
        session=1, step=2, seq=3, acked_seq=1, released_handles=packed(8), new_requests=[request()],
        handles=packed(1, 2), num_scheduled_tokens=packed(3, 4), new_block_rows=packed(0), num_new_blocks=packed(2),
        new_block_ids=packed(5, 6), trace_context=b"t" * 25,
    )  # fmt: skip
    step = wire.step(message)
    assert (step.session, step.step, step.seq, step.acked_seq, step.defect) == (1, 2, 3, 1, "")
    rows = step.released_handles, step.handles, step.num_scheduled_tokens
    assert [ids.tolist() for ids in rows] == [[8], [1, 2], [3, 4]]
    blocks = step.new_block_rows, step.num_new_blocks, step.new_block_ids
    assert [ids.tolist() for ids in blocks] == [[0], [2], [5, 6]]
    (new,) = step.new_requests
    assert (new.handle, new.request_id, new.epoch, new.num_prompt_tokens) == (4_000_000_000, "g1-7", 2, 2)
    assert (new.token_ids.tolist(), new.block_ids.tolist(), new.num_computed_tokens) == ([5, 6, 7], [9, 8], 1)


def test_sampling_and_stopping_become_one_value() -> None:
    sampling = wire.step(worker_pb2.Step(new_requests=[request()])).new_requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.25, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, 2, 1.5)
    assert (sampling.seed, sampling.logit_bias, sampling.num_logprobs) == (2**64 - 1, {3: -1.5}, 0)
    assert (sampling.min_tokens, sampling.ending_token_ids) == (4, (2, 11))


def test_an_ignored_end_of_sequence_is_not_masked() -> None:
    sampling = wire.step(worker_pb2.Step(new_requests=[request(ignore_eos=True)])).new_requests[0].sampling
    assert sampling.ending_token_ids == (11,)


def test_logprobs_that_nobody_asked_for_are_none() -> None:
    message = request()
    message.sampling.ClearField("num_logprobs")
    assert wire.step(worker_pb2.Step(new_requests=[message])).new_requests[0].sampling.num_logprobs is None


def test_torn_columns_make_a_defect() -> None:
    step = wire.step(worker_pb2.Step(session=1, step=2, seq=3, acked_seq=1, handles=b"\x00" * 6))
    assert step.defect
    assert (step.session, step.step, step.seq, step.acked_seq, len(step.handles)) == (1, 2, 3, 1, 0)


def test_a_result_is_written_as_it_is() -> None:
    logprobs = PositionLogprobs(
        sampled=TokenLogprob(token_id=7, logprob=-0.5), top=(TokenLogprob(token_id=9, logprob=-0.25),)
    )
    message = wire.result(
        StepResult(
            session=1, step=2, seq=3, status=StepStatus.OK, token_ids=(7, 8), logprobs=(logprobs,),
            timing=StepTiming(gap_us=1, prepare_us=2, forward_us=3, sample_us=4, idle_us=10**12),
        )
    )  # fmt: skip
    assert (message.session, message.step, message.seq, message.status) == (1, 2, 3, worker_pb2.STEP_STATUS_OK)
    assert message.token_ids == packed(7, 8)
    assert (message.logprobs[0].sampled.token_id, message.logprobs[0].top[0].logprob) == (7, -0.25)
    assert (message.timing.gap_us, message.timing.forward_us, message.timing.idle_us) == (1, 3, 2**31 - 1)
