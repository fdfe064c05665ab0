"""One worker's stream: what comes twice is ignored, what is lost ends it, what was sent is kept until answered."""

import pytest

from octavo.errors import Failed
from octavo.worker.v1 import worker_pb2 as pb
from scheduler_service import worker_wire
from scheduler_service.core.plan import Step
from scheduler_service.worker_hello import Hello
from scheduler_service.worker_link import WorkerLink
from tests.fakes.worker_messages import a_hello


def hello(session: int = 1, last_executed_seq: int = 0) -> Hello:
    message = a_hello("w0", 1, 64)
    message.session, message.last_executed_seq = session, last_executed_seq
    return worker_wire.hello(message)


def link_with(*, num_sent: int = 0, num_results: int = 0) -> WorkerLink:
    link = WorkerLink(hello(), scheduler_incarnation=1)
    for seq in range(1, num_sent + 1):
        link.send(step(seq), {}, trace_context=b"")
    for seq in range(1, num_results + 1):
        assert link.is_next_result(seq)
    return link


def step(seq: int) -> Step:
    return Step(
        step=seq, seq=seq, acked_seq=0, released_handles=(), new_requests=(), handles=(1,), num_scheduled_tokens=(),
        new_block_rows=(), num_new_blocks=(), new_block_ids=(), slots_digest=1,
    )  # fmt: skip


def heartbeat(executed: int, received: int) -> pb.Heartbeat:
    return pb.Heartbeat(last_executed_seq=executed, last_received_seq=received)


async def test_results_are_taken_once_each() -> None:
    link = link_with(num_sent=2)
    assert [link.is_next_result(seq) for seq in (1, 1, 2, 1, 2)] == [True, False, True, False, False]


async def test_a_result_that_comes_too_early_ends_the_stream() -> None:
    link = link_with(num_sent=3, num_results=1)
    with pytest.raises(Failed, match="result 3 came after 1"):
        link.is_next_result(3)
    assert link.is_next_result(2)


async def test_results_of_a_scheduler_before_this_one_are_not_its_own() -> None:
    link = WorkerLink(hello(session=4, last_executed_seq=7), scheduler_incarnation=1)
    assert [link.is_next_result(seq) for seq in (6, 7, 8)] == [False, False, True]


async def test_a_heartbeat_that_knows_more_than_its_results_said_ends_the_stream() -> None:
    link = link_with(num_sent=2, num_results=1)
    link.beat(heartbeat(1, 2), 100.0)
    with pytest.raises(Failed, match="result 2 never came"):
        link.beat(heartbeat(2, 2), 100.5)


async def test_a_step_may_be_on_its_way_for_a_second() -> None:
    link = link_with(num_sent=2)
    for now_s in (100.0, 100.5, 100.9):
        link.beat(heartbeat(0, 1), now_s)
    with pytest.raises(Failed, match="step 2 never came"):
        link.beat(heartbeat(0, 1), 101.0)


async def test_steps_that_keep_coming_are_not_lost_however_far_they_are_behind() -> None:
    link = link_with(num_sent=9)
    for received in range(9):
        link.beat(heartbeat(0, received), 100 + 0.9 * received)
    for now_s in (110.0, 120.0):
        link.beat(heartbeat(0, 9), now_s)


async def test_what_a_lost_step_has_waited_counts_anew_on_a_new_stream() -> None:
    link = link_with(num_sent=1)
    link.beat(heartbeat(0, 0), 100.0)
    link.resume(hello(session=2), acked_seq=0)
    link.beat(heartbeat(0, 0), 105.0)


@pytest.mark.parametrize(
    ("last_executed_seq", "kept_seqs", "missing"),
    [(2, [], None), (3, [3], None), (4, [2, 3, 4], None), (3, [], 3), (4, [4], 3), (1, [], 2)],
    ids=["nothing new", "the next one", "old ones too", "none kept", "a gap", "it has gone back"],
)
async def test_a_hello_must_bring_what_nobody_else_has(
    last_executed_seq: int, kept_seqs: list[int], missing: int | None
) -> None:
    link = link_with(num_sent=4, num_results=2)
    assert link.missing_result(hello(2, last_executed_seq), kept_seqs) == missing


async def test_a_new_stream_begins_with_the_steps_that_were_not_run() -> None:
    link = link_with(num_sent=3, num_results=1)
    link.taken(1)
    stream, written = link.resume(hello(2, last_executed_seq=2), acked_seq=1), list[pb.ConnectResponse]()

    async def write(message: pb.ConnectResponse) -> None:
        written.append(message)

    link.release()
    await stream.write_to(write)
    assert [message.WhichOneof("message") for message in written] == ["welcome", "step"]
    assert (written[0].welcome.acked_seq, written[1].step.seq) == (1, 3)
