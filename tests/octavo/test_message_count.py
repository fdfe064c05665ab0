"""Numbers of a stream: once each, in order, none missing."""

import pytest

from octavo.message_count import MessageCount, MessageLost


def count_with(*, sent: int = 0, received: int = 0) -> MessageCount:
    count = MessageCount()
    assert [count.next_seq() for _ in range(sent)] == list(range(1, sent + 1))
    assert all(count.is_next(seq) for seq in range(1, received + 1))
    return count


def test_what_comes_twice_is_taken_once() -> None:
    assert [count_with(received=3).is_next(seq) for seq in (3, 1, 2)] == [False, False, False]


@pytest.mark.parametrize("seq", [0, 3], ids=["no number", "a gap"])
def test_what_is_not_the_next_ends_the_stream(seq: int) -> None:
    count = count_with(received=1)
    with pytest.raises(MessageLost, match=f"message {seq} came after 1"):
        count.is_next(seq)
    assert count.is_next(2)


def test_the_other_side_may_lack_a_message_for_a_while() -> None:
    count = count_with(sent=2)
    for now_s in (100.0, 101.0, 102.9):
        count.beat(1, now_s)
    with pytest.raises(MessageLost, match="message 2 did not arrive within 3 s"):
        count.beat(1, 103.0)


def test_a_message_that_arrives_after_all_is_not_lost() -> None:
    count = count_with(sent=2)
    count.beat(1, 100.0)
    count.beat(2, 102.0)
    count.next_seq()
    count.beat(2, 110.0)


def test_messages_that_keep_arriving_are_not_lost_however_far_the_other_is_behind() -> None:
    count = count_with(sent=100)
    for received in range(50):
        count.beat(received, 100 + 2.9 * received)
