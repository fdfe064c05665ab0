"""The stream to one worker incarnation: steps down, kept until their results are taken, and its signs of life.

Streams may be lost and come back; the steps that a new stream missed are sent again byte for byte. What is in a step,
and whether a silent worker is dead, is decided elsewhere.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from octavo.loop_clock import Hearing
from octavo.worker.v1 import worker_pb2 as pb
from scheduler_service import failures, worker_wire
from scheduler_service.core.plan import Step
from scheduler_service.streams import Outbox
from scheduler_service.tickets import Ticket
from scheduler_service.worker_hello import Hello

SILENCE_S: Final = 3.0  # of a worker, after which its incarnation is over; it beats every 0.5 s
BEAT_S: Final = 0.5  # between two signs of life of ours; a worker dials again after 2 s of silence
STEP_LOST_S: Final = 1.0  # during which heartbeats say that a sent step has not come

Stream = Outbox[pb.ConnectResponse]


class WorkerLink:
    """One incarnation of one worker."""

    def __init__(self, hello: Hello, *, scheduler_incarnation: int) -> None:
        self.hello = hello
        self._hearing = Hearing()
        self.scheduler_incarnation = scheduler_incarnation
        self._kept: deque[tuple[int, pb.ConnectResponse]] = deque()  # seq, step: not answered yet
        self._last_sent_seq = self._last_result_seq = hello.last_executed_seq
        self._waits_since_s: float | None = None  # since when heartbeats lack the step after _received_seq
        self._received_seq = 0
        self._stream = Stream()

    def begin(self, *, is_new_here: bool) -> Stream:
        """The stream of the first hello. A worker that has worked for another scheduler forgets its requests."""
        self._welcome(acked_seq=self.hello.last_executed_seq)
        if is_new_here:
            self._stream.put(pb.ConnectResponse(reset=pb.Reset()))
        return self._stream

    def missing_result(self, hello: Hello, kept_seqs: Sequence[int]) -> int | None:
        """The first step that a hello of the same incarnation says was run, and whose result nobody has any more."""
        if hello.last_executed_seq < self._last_result_seq:
            return self._last_result_seq
        due = range(self._last_result_seq + 1, hello.last_executed_seq + 1)
        return next((seq for seq in due if seq not in kept_seqs), None)

    def resume(self, hello: Hello, *, acked_seq: int) -> Stream:
        """The stream of a later hello of the same incarnation, beginning with the steps it has not run."""
        self._stream.close()
        self.hello = hello
        self._waits_since_s = None
        self._stream = Stream()
        self._welcome(acked_seq=acked_seq)
        for seq, message in self._kept:
            if seq > hello.last_executed_seq:
                self._stream.put(message)
        return self._stream

    def is_current(self, stream: Stream) -> bool:
        """Whether no later stream has taken its place."""
        return self._stream is stream

    def heard(self) -> None:
        """Anything that comes from the worker is a sign of life."""
        self._hearing.heard()

    def is_next_result(self, seq: int) -> bool:
        """Whether a result is the next one, which is taken by this; False if it came before.

        Raises Failed, which ends the stream, if one before it never came.
        """
        if seq <= self._last_result_seq:
            return False
        if seq > self._last_result_seq + 1:
            raise failures.message_lost(self.hello, f"result {seq} came after {self._last_result_seq}")
        self._last_result_seq = seq
        return True

    def beat(self, heartbeat: pb.Heartbeat, now_s: float) -> None:
        """Raises Failed, which ends the stream, if the worker shows that a result or a step never came."""
        if heartbeat.last_executed_seq > self._last_result_seq:
            raise failures.message_lost(self.hello, f"result {self._last_result_seq + 1} never came")
        received_seq = heartbeat.last_received_seq
        if received_seq >= self._last_sent_seq:
            self._waits_since_s = None
        elif self._waits_since_s is None or received_seq > self._received_seq:  # it may still be on its way
            self._waits_since_s, self._received_seq = now_s, received_seq
        elif now_s - self._waits_since_s >= STEP_LOST_S:
            raise failures.message_lost(self.hello, f"step {received_seq + 1} never came")

    async def silence(self) -> str:
        """Return when nothing has been heard of the worker for too long, whether or not it has a stream."""
        await self._hearing.silence(SILENCE_S)
        return f"nothing was heard of the worker for {SILENCE_S:g} s"

    def send(self, step: Step, tickets: Mapping[str, Ticket], *, trace_context: bytes) -> None:
        message = pb.ConnectResponse(
            step=worker_wire.step(step, session=self.hello.session, tickets=tickets, trace_context=trace_context)
        )
        self._kept.append((step.seq, message))
        self._last_sent_seq = step.seq
        self._stream.put(message)

    def taken(self, seq: int) -> None:
        """Results up to `seq` have arrived; their steps need not be kept."""
        while self._kept and self._kept[0][0] <= seq:
            self._kept.popleft()

    def drain(self) -> None:
        """Tell the worker to finish what was sent and to leave."""
        self._stream.put(pb.ConnectResponse(drain=pb.Drain()))

    def close(self, reason: str) -> None:
        """Tell the worker that this incarnation is over."""
        self._stream.put(closed(reason))
        self._stream.close()

    def release(self) -> None:
        """End the stream in good order."""
        self._stream.close()

    def _welcome(self, *, acked_seq: int) -> None:
        self.heard()
        welcome = pb.Welcome(scheduler_incarnation=self.scheduler_incarnation, acked_seq=acked_seq)
        self._stream.put(pb.ConnectResponse(welcome=welcome))


async def keep_beating(stream: Stream) -> None:
    """Put a sign of life on a stream every BEAT_S, for ever."""
    while True:
        await asyncio.sleep(BEAT_S)
        stream.put(pb.ConnectResponse(beat=pb.Beat()))


def closed(reason: str) -> pb.ConnectResponse:
    """Says that an incarnation is over."""
    return pb.ConnectResponse(close=pb.Close(reason=reason))
