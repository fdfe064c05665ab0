"""Scenario 95: a step that arrives whole but wrong is not run. What it would have written into the wrong block is not
written, nobody is blamed, its requests come whole again, and every token is that of an undisturbed run.
"""

from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from octavo.worker.v1 import worker_pb2 as pb
from tests.fakes.paged_worker import continuation
from tests.faults import rig as rigs
from tests.faults.rig import Rig

MAX_TOKENS = 80
Alteration = Callable[[pb.Step], bool]  # False: there is nothing in this step that it could alter


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigs.started(tmp_path) as started:
        yield started


class Once:
    """Alters the first step that it can after `after_seq`."""

    def __init__(self, alter: Alteration, *, after_seq: int) -> None:
        self._alter = alter
        self._after_seq = after_seq
        self.altered_seq = 0

    def __call__(self, message: bytes) -> bytes:
        response = pb.ConnectResponse.FromString(message)
        is_step = response.HasField("step") and response.step.seq > self._after_seq
        if self.altered_seq or not is_step or not self._alter(response.step):
            return message
        self.altered_seq = response.step.seq
        return response.SerializeToString()


def another_block(step: pb.Step) -> bool:
    """A row gets a block that belongs to somebody else: it would overwrite what is there."""
    if step.new_block_ids:
        ids = array("I", step.new_block_ids)
        ids[0] = 1 if ids[0] != 1 else 2
        step.new_block_ids = ids.tobytes()
    return bool(step.new_block_ids)


def another_row(step: pb.Step) -> bool:
    """The block goes to another row."""
    rows = array("I", step.new_block_rows)
    if len(rows) == 1:
        rows[0] = 1 - rows[0] if rows[0] < 2 else 0
        step.new_block_rows = rows.tobytes()
    return len(rows) == 1


def no_block(step: pb.Step) -> bool:
    """New blocks are missing: the row would write behind its table."""
    had_blocks = bool(step.new_block_ids)
    for field in ("new_block_rows", "num_new_blocks", "new_block_ids"):
        step.ClearField(field)
    return had_blocks


def other_rows(step: pb.Step) -> bool:
    """Rows change places, so that one request would move by the other's count."""
    handles = array("I", step.handles)
    step.handles = array("I", reversed(handles)).tobytes()
    return len(handles) > 1


def nobody_new(step: pb.Step) -> bool:
    """A request that is new here is missing."""
    was_new = bool(step.new_requests)
    step.ClearField("new_requests")
    return was_new


def another_start(step: pb.Step) -> bool:
    """A new request is said to have a block's tokens computed that it has not."""
    for new in step.new_requests:
        new.num_computed_tokens += 16
    return bool(step.new_requests) and len(step.handles) > 4 * len(step.new_requests)


ALTERATIONS = [another_block, another_row, no_block, other_rows, nobody_new, another_start]


def prompt(number: int) -> list[int]:
    return [2000 + number, *range(40)]


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
async def test_a_step_that_is_not_what_was_sent_is_not_run(
    rig: Rig, alter: Alteration, caplog: pytest.LogCaptureFixture
) -> None:
    rig.worker_wire.rewrite = once = Once(alter, after_seq=5)
    await rig.add_worker(step_s=0.003)
    gateway = rig.gateway
    for number in range(3):
        await gateway.submit(number, prompt(number), max_tokens=MAX_TOKENS)
    await gateway.until(lambda: len(gateway.tokens[0]) > 15)
    await gateway.submit(3, prompt(3), max_tokens=MAX_TOKENS)
    finished = [await gateway.end_of(number) for number in range(4)]
    assert once.altered_seq > 5
    for number in range(4):
        assert gateway.tokens[number] == continuation(prompt(number), MAX_TOKENS)
    assert "step_refused" in caplog.text
    assert max(one.figures.num_preemptions for one in finished) == 1
    refused = [record.octavo_fields for record in caplog.records if record.getMessage() == "step_refused"]  # type: ignore[attr-defined]
    assert [(fields["status"], fields["seq"]) for fields in refused] == [("VOID", once.altered_seq)]


async def test_a_disagreement_that_no_repetition_mends_ends_the_requests(rig: Rig) -> None:
    """Every digest is wrong: that is no lost message, and it must not go on for ever."""

    def always_wrong(message: bytes) -> bytes:
        response = pb.ConnectResponse.FromString(message)
        if response.HasField("step"):
            response.step.slots_digest ^= 2
        return response.SerializeToString()

    rig.worker_wire.rewrite = always_wrong
    await rig.add_worker()
    await rig.gateway.submit(0, prompt(0))
    assert (await rig.gateway.end_of(0)).failure.reason == "POISONED"
    rig.worker_wire.rewrite = bytes
    await rig.gateway.submit(1, prompt(1))
    await rig.gateway.end_of(1)
    assert rig.gateway.tokens[1] == continuation(prompt(1), 10)
