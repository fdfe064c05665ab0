"""One stream of a gateway: its numbers and its signs of life. What is in the messages is the session's business."""

from octavo.loop_clock import Hearing, now_s
from octavo.message_count import SILENCE_S, MessageCount, MessageLost


class SessionStream:
    """From a hello, which is its first message, to its loss."""

    def __init__(self) -> None:
        self.count = MessageCount()
        self._hearing = Hearing()

    def is_next(self, seq: int) -> bool:
        """Whether a message that has come is to be heard; False if it came before. Raises MessageLost."""
        self._hearing.heard()
        return self.count.is_next(seq)

    def beat(self, last_received_seq: int) -> None:
        """The gateway says what it has. Raises MessageLost if something never arrives there."""
        self.count.beat(last_received_seq, now_s())

    async def silence(self) -> None:
        """Raise MessageLost, which ends the stream, when nothing comes any more."""
        await self._hearing.silence(SILENCE_S)
        raise MessageLost(f"nothing was heard of the gateway for {SILENCE_S:g} s")
