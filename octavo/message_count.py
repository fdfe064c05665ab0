"""Counts the messages of one stream, both ways, so that none is lost, doubled or swapped unseen. Knows no message.

The first message of each side is number 1, every later one 1 more. Time is told, never read.
"""

from typing import Final

BEAT_S: Final = 1.0  # between two signs of life of either side of a Session
SILENCE_S: Final = 3.0  # of the other side, after which a Session is over
LOST_S: Final = 3.0  # that the other side may say it lacks a message for


class MessageLost(Exception):
    """A message never came: the stream is not to be trusted any more."""


class MessageCount:
    """Both directions of one stream, as one side sees them."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.num_received = 0
        self._num_theirs = 0  # that the other side had when it said last that it lacks some
        self._lacks_since_s: float | None = None

    def next_seq(self) -> int:
        """The number of the message that is now sent."""
        self.num_sent += 1
        return self.num_sent

    def is_next(self, seq: int) -> bool:
        """Whether a message is the next one, which is taken by this; False if it came before.

        Raises MessageLost if one before it never came, or if it has no number.
        """
        if 0 < seq <= self.num_received:
            return False
        if seq != self.num_received + 1:
            raise MessageLost(f"message {seq} came after {self.num_received}")
        self.num_received = seq
        return True

    def beat(self, last_received_seq: int, now_s: float) -> None:
        """The other side says what it has. Raises MessageLost if something sent does not reach it for LOST_S."""
        if last_received_seq >= self.num_sent:
            self._lacks_since_s = None
        elif self._lacks_since_s is None or last_received_seq > self._num_theirs:  # it may still be on its way
            self._lacks_since_s, self._num_theirs = now_s, last_received_seq
        elif now_s - self._lacks_since_s >= LOST_S:
            raise MessageLost(f"message {last_received_seq + 1} did not arrive within {LOST_S:g} s")
