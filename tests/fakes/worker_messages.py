"""What a worker without a model says and hears: its hello, and a step message as the scheduler core's value."""

from array import array

from octavo.common.v1 import common_pb2
from octavo.worker.v1 import worker_pb2 as pb
from scheduler_service.core.plan import NewRequest, Step

BLOCK_SIZE = 16


def a_hello(worker_id: str, incarnation: int, num_blocks: int) -> pb.Hello:
    """A worker that has run nothing yet."""
    return pb.Hello(
        worker_id=worker_id,
        incarnation=incarnation,
        fingerprint=common_pb2.Fingerprint(
            hash_scheme=1,
            model_digest=b"m" * 32,
            tokenizer_digest=b"t" * 32,
            block_size=BLOCK_SIZE,
            kv_dtype="float32",
            kv_layout="nb2hsd",
        ),
        model=common_pb2.ModelInfo(name="fake", max_model_len=512, vocab_size=50_000),
        num_blocks=num_blocks,
        max_num_batched_tokens=2048,
    )


def step_of(message: pb.Step) -> Step:
    """The same step, unpacked."""
    return Step(
        step=message.step,
        seq=message.seq,
        acked_seq=message.acked_seq,
        released_handles=_column(message.released_handles),
        new_requests=[_new_request(new) for new in message.new_requests],
        handles=_column(message.handles),
        num_scheduled_tokens=_column(message.num_scheduled_tokens),
        new_block_rows=_column(message.new_block_rows),
        num_new_blocks=_column(message.num_new_blocks),
        new_block_ids=_column(message.new_block_ids),
        slots_digest=message.slots_digest,
    )


def _new_request(new: pb.NewRequest) -> NewRequest:
    return NewRequest(
        handle=new.handle,
        request_id=new.request_id,
        epoch=new.epoch,
        token_ids=_column(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        block_ids=_column(new.block_ids),
        num_computed_tokens=new.num_computed_tokens,
    )


def _column(packed: bytes) -> list[int]:
    return array("I", packed).tolist()
