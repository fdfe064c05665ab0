"""The gateway's one stream to the scheduler: all requests go up it, all their tokens come down it.

Owns which requests are open and which of their tokens have arrived, so that a new stream goes on where the last one
broke. Knows no text; a stream's connection, numbers and signs of life are `dialled_session`'s.

After a lost stream it dials again at once, then after 0.1, 0.2 and every 0.5 s. Requests wait meanwhile; when
nobody has answered for 30 s they fail with SCHEDULER_UNREACHABLE.
"""

import asyncio
import contextlib
import itertools
import secrets
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

from gateway import session_wire
from gateway.core.generation import FinishReason
from gateway.core.submission import (
    Ended,
    Rejected,
    SchedulerFailure,
    SchedulerState,
    Submission,
    Tokens,
    Update,
    end_told_by,
)
from gateway.dialled_session import DialledSession, Outbox
from gateway.inbox import Inbox
from octavo import logs
from octavo.client import retry_pause_s
from octavo.loop_clock import now_s
from octavo.scheduler.v1 import scheduler_pb2

GIVE_UP_AFTER_S = 30.0  # without a scheduler, open requests fail after this time
SHORT_LIFE_S = 1.0  # a stream that ended sooner is a failed try, so that two processes never spin
FLUSH_S = 0.5  # at the end, for the last cancels to be written

_log = logs.get(__name__)


class CancelReason(Enum):
    """Why a request is no longer wanted."""

    CLIENT_GONE = scheduler_pb2.CANCEL_REASON_CLIENT_GONE
    STOP_STRING = scheduler_pb2.CANCEL_REASON_STOP_STRING
    DEADLINE = scheduler_pb2.CANCEL_REASON_DEADLINE
    SHUTDOWN = scheduler_pb2.CANCEL_REASON_SHUTDOWN


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """A request that the scheduler has, or will get with the next stream."""

    submission: Submission
    inbox: Inbox
    index: int  # which answer of its call
    output_token_ids: "array[int]" = field(default_factory=lambda: array("I"))  # received so far
    was_submitted: bool = False  # to a scheduler, which has not rejected it
    is_cancelled: bool = False  # only its end is still awaited

    def deliver(self, update: Update) -> None:
        if isinstance(update, Tokens):
            self.output_token_ids.extend(update.token_ids)
        self.inbox.put(self.index, update)


@asynccontextmanager
async def connected(
    address: str,
    *,
    gateway_id: str,
    tokenizer_digest: bytes,
    on_state: Callable[[SchedulerState], None],
) -> AsyncIterator["SchedulerSession"]:
    """A session that is kept up while the block runs; it need not be up yet. `on_state` hears every change."""
    session = SchedulerSession(address, gateway_id=gateway_id, tokenizer_digest=tokenizer_digest, on_state=on_state)
    async with asyncio.TaskGroup() as tasks:
        keeper = tasks.create_task(session.keep_connected(), name="scheduler-session")
        try:
            yield session
        finally:
            await session.flush()
            keeper.cancel()


class SchedulerSession:
    """Submits and cancels without waiting; what comes back goes to each request's inbox."""

    def __init__(
        self,
        address: str,
        *,
        gateway_id: str,
        tokenizer_digest: bytes,
        on_state: Callable[[SchedulerState], None],
    ) -> None:
        self._address = address
        self._hello = scheduler_pb2.SessionHello(
            gateway_id=gateway_id, incarnation=secrets.randbits(64), tokenizer_digest=tokenizer_digest
        )
        self._on_state = on_state
        self._is_connected = False
        self._is_leaving = False  # the scheduler, as it said
        self._reason = ""  # the scheduler's last, why requests are not served
        self._lost_at_s = now_s()
        self._request_nums = itertools.count(1)
        self._open: dict[int, OpenRequest] = {}
        self._outbox = Outbox()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def submit(self, submission: Submission, inbox: Inbox, *, index: int = 0) -> int:
        """Hand a request in; its number. Without a stream, or on one about to end, it waits for the next one."""
        request_num = next(self._request_nums)
        self._open[request_num] = OpenRequest(submission=submission, inbox=inbox, index=index)
        if self._is_connected and not self._is_leaving:
            self._submit(request_num)
        return request_num

    def cancel(self, request_num: int, reason: CancelReason) -> None:
        """The request is no longer wanted and nobody listens any more. Harmless when it is over."""
        if self._open.pop(request_num, None) is not None:
            self._send_cancel(request_num, reason)

    def stop(self, request_num: int) -> None:
        """A stop string matched: no more tokens are wanted, but its end, with the figures, is still delivered."""
        request = self._open.get(request_num)
        if request is None:
            return
        request.is_cancelled = True
        self._send_cancel(request_num, CancelReason.STOP_STRING)
        if not self._is_connected:
            self._drop_cancelled()

    async def flush(self) -> None:
        """Return when everything is written, the stream is lost or FLUSH_S have passed."""
        if self._outbox and self._is_connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._outbox.emptied()

    async def keep_connected(self) -> None:
        """Dial again and again, for ever."""
        num_tries, known_problem = 0, ""
        while True:
            dialled_at_s = now_s()
            stream = DialledSession(self._address, self._hello, outbox=self._outbox, hear=self._hear)
            problem = await stream.run()
            if self._is_connected:
                event, say = ("scheduler_left", _log.info) if self._is_leaving else ("scheduler_lost", _log.warning)
                say(event, problem=problem, num_open=len(self._open))
                self._lost_at_s = now_s()
                self._is_connected = False
                self._drop_cancelled()
            elif problem != known_problem:
                _log.warning("scheduler_not_found", problem=problem)
            known_problem = problem
            self._on_state(SchedulerState(reason=f"no connection to the scheduler: {problem}"))
            if now_s() - self._lost_at_s >= GIVE_UP_AFTER_S:
                self._fail_open(problem)
            num_tries = 0 if now_s() - dialled_at_s >= SHORT_LIFE_S else num_tries + 1
            await asyncio.sleep(retry_pause_s(num_tries - 1) if num_tries else 0)

    def _hear(self, response: scheduler_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "state":
                self._hear_state(response.state)
            case "events":
                self._hear_events(response.events)

    def _hear_state(self, message: scheduler_pb2.ServingState) -> None:
        self._is_leaving = message.draining
        if not self._is_connected:
            self._is_connected = True
            _log.info("scheduler_connected", num_open=len(self._open), ready=message.ready)
            self._submit_again()
        if message.reason != self._reason:
            self._reason = message.reason
            is_meant = message.draining or message.refusing
            is_wrong = message.HasField("model") and not message.ready and not is_meant
            say = _log.error if is_wrong else _log.info  # somebody must do what the reason says
            say("serving_changed", ready=message.ready, reason=message.reason)
        self._on_state(session_wire.state(message))

    def _submit_again(self) -> None:
        """Every open request with the tokens it has. Of some only the end is missing, and their tokens tell it."""
        for request_num, request in list(self._open.items()):
            ended = end_told_by(request.submission.stopping, request.output_token_ids)
            if ended is not None:
                self._open.pop(request_num).deliver(ended)
            else:
                self._submit(request_num)

    def _submit(self, request_num: int) -> None:
        request = self._open[request_num]
        self._outbox.put(
            session_wire.submit(
                request_num, request.submission, request.output_token_ids, was_submitted=request.was_submitted
            )
        )
        request.was_submitted = True

    def _hear_events(self, events: scheduler_pb2.Events) -> None:
        for request_num, update in session_wire.updates(events):
            request = self._open.get(request_num)
            if request is None:
                continue  # cancelled meanwhile
            is_over = isinstance(update, Ended | Rejected)
            if is_over:
                del self._open[request_num]
            if is_over or not request.is_cancelled:
                request.deliver(update)

    def _send_cancel(self, request_num: int, reason: CancelReason) -> None:
        cancel = scheduler_pb2.Cancel(request_num=request_num, reason=reason.value)
        self._outbox.put(scheduler_pb2.SessionRequest(cancel=cancel))

    def _drop_cancelled(self) -> None:
        """The stream is gone: requests are submitted again with the next one, but not those that were cancelled."""
        self._outbox.keep_cancels()
        for request_num in [num for num, request in self._open.items() if request.is_cancelled]:
            ended = Ended(reason=FinishReason.CANCELLED, stop_token_id=None, failure=None, figures=None)
            self._open.pop(request_num).deliver(ended)

    def _fail_open(self, problem: str) -> None:
        failure = SchedulerFailure(
            reason="SCHEDULER_UNREACHABLE",
            message=f"the scheduler has not answered for {GIVE_UP_AFTER_S:g} s: {problem}",
            metadata={"waited_s": f"{GIVE_UP_AFTER_S:g}"},
        )
        for request in self._open.values():
            request.deliver(Rejected(failure=failure))
        self._open.clear()
