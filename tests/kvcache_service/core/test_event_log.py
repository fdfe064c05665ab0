"""Events are numbered without gaps, kept within bounds, and read from any number that is still there."""

import pytest

from kvcache_service.core.event_log import ENTRY_BYTES, EventLog
from kvcache_service.core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    CopyDropped,
    PinEnd,
    PinEnded,
)

GONE = BlockRemoved(bytes(20), 1)


def stored(num_blocks: int) -> BlocksStored:
    return BlocksStored(
        block_hashes=(bytes(16),) * num_blocks, parent_hash=None, token_ids=[7] * 16 * num_blocks, block_ids=(1,)
    )


def numbers(log: EventLog, after: int, *, max_events: int = 100, max_bytes: int = 1 << 20) -> list[int]:
    return [event.event_num for event in log.after(after, max_events=max_events, max_bytes=max_bytes)]


def test_events_of_all_pools_are_numbered_from_1_without_gaps():
    log = EventLog()
    log.append("w1", [GONE, AllBlocksCleared()])
    log.append("w2", [GONE])
    events = log.after(0, max_events=9, max_bytes=1 << 20)
    assert [(event.event_num, event.pool_id, event.event) for event in events] == [
        (1, "w1", GONE), (2, "w1", AllBlocksCleared()), (3, "w2", GONE),
    ]  # fmt: skip


def test_what_does_not_concern_an_index_gets_no_number():
    log = EventLog()
    ended = PinEnded(namespace=None, pin_id="p", reason=PinEnd.EXPIRED)
    assert not log.append("w1", [CopyDropped(bytes(20), 2), ended])
    assert log.last_num == 0
    assert log.append("w1", [GONE])
    assert log.last_num == 1


def test_a_reader_goes_on_behind_any_event_that_is_kept():
    log = EventLog(max_events=3)
    log.append("w1", [GONE] * 5)
    assert [log.reaches_back_to(number) for number in range(8)] == [False, False, True, True, True, True, False, False]
    assert (numbers(log, 2), numbers(log, 4), numbers(log, 5)) == ([3, 4, 5], [5], [])


def test_a_reader_takes_as_many_as_it_asks_for_and_at_least_one():
    log = EventLog()
    log.append("w1", [GONE, GONE, GONE, stored(100), GONE])
    assert numbers(log, 0, max_events=2) == [1, 2]
    assert numbers(log, 0, max_bytes=2 * ENTRY_BYTES) == [1, 2, 3]
    assert numbers(log, 3, max_bytes=1) == [4]


@pytest.mark.parametrize("limits", [{"max_events": 1000}, {"max_bytes": 1000 * ENTRY_BYTES}])
def test_the_log_is_bounded_by_number_and_by_bytes(limits: dict[str, int]):
    log = EventLog(**limits)
    for _ in range(3000):
        log.append("w1", [GONE])
    assert len(log) == 1000
    assert log.last_num == 3000


def test_a_past_that_was_forgotten_is_read_by_nobody_and_numbers_go_on():
    log = EventLog()
    log.append("w1", [GONE, stored(3)])
    log.forget_past()
    log.append("w1", [GONE])
    assert [log.reaches_back_to(number) for number in (0, 1, 2, 3)] == [False, False, True, True]
    assert (numbers(log, 2), len(log)) == ([3], 1)


def test_an_event_larger_than_the_log_is_not_kept_and_nobody_reads_past_it():
    log = EventLog(max_bytes=1000)
    log.append("w1", [GONE, stored(1000), GONE])
    assert [log.reaches_back_to(number) for number in (0, 1, 2, 3)] == [False, False, True, True]
