"""The stream to the scheduler: dials, says hello, hands steps to the compute thread, and sends results and heartbeats.

Knows gRPC and sessions; what a step does is the executor's business. One reader, one writer, one heart.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from gpu_worker import wire
from gpu_worker.compute_thread import ComputeThread
from gpu_worker.core.step import StepResult
from gpu_worker.core.step_sequence import Received, Turn
from gpu_worker.executor import StepExecutor
from gpu_worker.identity import Identity, new_incarnation
from octavo import client, logs
from octavo.health import Readiness
from octavo.loop_clock import Hearing
from octavo.worker.v1 import worker_pb2, worker_pb2_grpc

HEARTBEAT_S = 0.5
SILENCE_S = 2.0  # of the scheduler, which beats every 0.5 s and gives a silent worker up after 3 s
STEP_BOUND_S = 10.0  # of a step, after which this worker says that it is not ready
LEAVE_TIMEOUT_S = 2.0  # for the scheduler to see that the last result was sent
LOG_EVERY_S = 10.0  # while nobody answers

_log = logs.get(__name__)

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
Call = Any  # grpc.aio.StreamStreamCall; the stubs of grpc have no usable type for it
Outbox = asyncio.Queue[worker_pb2.ConnectRequest | None]  # None = nothing follows


class SchedulerLink:
    """One worker's side of WorkerLinkService.Connect, over as many streams as it takes."""

    def __init__(
        self,
        identity: Identity,
        executor: StepExecutor,
        *,
        scheduler_addr: str,
        readiness: Readiness,
        report: Callable[[StepResult], None],
    ) -> None:
        self.incarnation = new_incarnation()
        self._identity = identity
        self._address = scheduler_addr
        self._readiness = readiness
        self._report = report
        self._compute = ComputeThread(executor, self._keep)
        self._session = 0
        self._welcomed_session: int | None = None
        self._last_seq = 0  # of the last step answered
        self._received = Received()  # of the stream that is open
        self._kept: deque[worker_pb2.StepResult] = deque()  # until the scheduler has acknowledged them
        self._outbox: Outbox | None = None  # of the stream that is open
        self._is_held = False  # a step has not ended for too long
        self._is_draining = False
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Keep a stream to the scheduler open until `leave` or the scheduler's drain. Never gives up dialling."""
        async with self._compute as compute, asyncio.TaskGroup() as tasks:
            dialling = tasks.create_task(self._dial_until_left(), name="dial")
            await asyncio.wait((dialling, compute.failed), return_when=asyncio.FIRST_COMPLETED)
            if compute.failed.done():
                compute.failed.result()

    def leave(self) -> None:
        """Finish the steps in hand, send their results, and end; `run` then returns. Requests go to other workers."""
        self._leaving.set()

    def drain(self) -> None:
        """Take no new requests, finish those that are here, then leave; without a scheduler leave at once."""
        self._is_draining = True
        if self._outbox is not None and self._is_welcome:
            self._outbox.put_nowait(self._heartbeat())
        else:
            self.leave()

    @property
    def _is_welcome(self) -> bool:
        """Whether the scheduler answered the latest hello."""
        return self._welcomed_session == self._session

    async def _dial_until_left(self) -> None:
        num_tries, logged_at = 0, -LOG_EVERY_S
        while not self._leaving.is_set():
            problem = await self._connect()
            if self._is_draining and not self._is_welcome:
                self.leave()
            if self._is_welcome:  # it was attached: the scheduler has only just gone
                num_tries, logged_at = 0, -LOG_EVERY_S
                if problem is None and not self._leaving.is_set():
                    logged_at = time.monotonic()
                    _log.info("scheduler_left", address=self._address)
            self._readiness.set(False, f"no scheduler at {self._address}: {problem or 'it has left'}")
            if not self._leaving.is_set() and time.monotonic() - logged_at >= LOG_EVERY_S:
                logged_at = time.monotonic()
                _log.warning(
                    "scheduler_missing", address=self._address, problem=problem,
                    retry_schedule_s=client.RETRY_SCHEDULE_S,
                )  # fmt: skip
            await _set_within(self._leaving, client.retry_pause_s(num_tries))
            num_tries += 1

    async def _connect(self) -> str | None:
        """One stream from hello to its end; says what broke it, or None when the scheduler ended it in good order."""
        await self._compute.idle()  # so that hello names the last step that ever ran in this session
        async with client.own_channel(self._address) as channel:
            call = worker_pb2_grpc.WorkerLinkServiceStub(channel).Connect()
            try:
                return await self._talk(call)
            finally:
                self._outbox = None
                call.cancel()

    async def _talk(self, call: Call) -> str | None:
        """Write, beat and read until the reader sees the end. A bug in any of them ends the process."""
        self._session += 1
        self._received.last_seq = self._last_seq
        outbox: Outbox = asyncio.Queue()
        outbox.put_nowait(self._hello())
        self._outbox = outbox
        async with asyncio.TaskGroup() as tasks:
            limit, hearing = asyncio.timeout(None), Hearing()
            others = [
                tasks.create_task(_write(call, outbox), name="write"),
                tasks.create_task(self._beat(outbox), name="beat"),
                tasks.create_task(self._end_when_left(outbox, limit), name="end-when-left"),
                tasks.create_task(_end_when_silent(hearing, limit), name="end-when-silent"),
            ]
            try:
                async with limit:
                    return await self._read(call, hearing)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            except TimeoutError:
                return "it did not answer in time"
            except asyncio.CancelledError:
                if client.is_task_cancelled():
                    raise
                return "CANCELLED: the stream was cancelled"  # which a read raises like this, whoever did it
            finally:
                for other in others:
                    other.cancel()

    async def _read(self, call: Call, hearing: Hearing) -> str | None:
        message = await call.read()
        if message is not EOF and message.WhichOneof("message") not in ("welcome", "close"):
            return "its first message was no welcome"
        while message is not EOF:
            hearing.heard()
            match message.WhichOneof("message"):
                case "step":
                    if not self._take(message.step):
                        return f"step {message.step.seq} came after {self._received.last_seq}"
                case "welcome":
                    self._welcomed(message.welcome)
                case "reset":
                    self._compute.reset()
                case "drain":
                    _log.info("drain_asked", by="scheduler")
                    self.leave()
                case "close":
                    await self._start_incarnation(message.close.reason)
                    return f"closed: {message.close.reason}"
            message = await call.read()
        if await call.code() is not grpc.StatusCode.OK:
            return f"{(await call.code()).name}: {await call.details()}"
        return None

    def _hello(self) -> worker_pb2.ConnectRequest:
        return wire.hello(
            self._identity,
            self.incarnation,
            session=self._session,
            last_executed_seq=self._last_seq,
            kept=list(self._kept),
        )

    def _take(self, step: worker_pb2.Step) -> bool:
        """Hand on the next step, ignore one that came before; False if one was lost on the way."""
        match self._received.turn(step.seq):
            case Turn.NEXT:
                self._acknowledge(step.acked_seq)
                if not self._leaving.is_set():  # else it would never come to an end: one step runs, one waits behind it
                    self._compute.submit(wire.step(step))
            case Turn.REPEATED:
                _log.info("step_repeated", seq=step.seq, last_seq=self._received.last_seq)
            case Turn.EARLY:
                _log.warning("step_lost", seq=step.seq, last_seq=self._received.last_seq, session=self._session)
                return False
        return True

    def _welcomed(self, welcome: worker_pb2.Welcome) -> None:
        self._welcomed_session = self._session
        self._acknowledge(welcome.acked_seq)
        self._readiness.set(True)
        _log.info(
            "scheduler_attached",
            address=self._address,
            scheduler_incarnation=welcome.scheduler_incarnation,
            incarnation=self.incarnation,
            session=self._session,
            last_seq=self._last_seq,
        )

    async def _start_incarnation(self, reason: str) -> None:
        """The K/V memory is void from here on; results of the old incarnation are dropped."""
        self._outbox = None
        self._compute.renew()
        await self._compute.idle()
        _log.warning("incarnation_closed", incarnation=self.incarnation, reason=reason)
        self.incarnation = new_incarnation()
        self._session = self._last_seq = 0
        self._welcomed_session = None
        self._kept.clear()

    def _acknowledge(self, acked_seq: int) -> None:
        while self._kept and self._kept[0].seq <= acked_seq:
            self._kept.popleft()

    def _keep(self, result: StepResult) -> None:
        """A result, in the event loop and in order: keep, send, report."""
        message = wire.result(result)
        self._last_seq = result.seq
        self._kept.append(message)
        if self._outbox is not None:
            self._outbox.put_nowait(worker_pb2.ConnectRequest(result=message))
        self._report(result)

    async def _beat(self, outbox: Outbox) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            outbox.put_nowait(self._heartbeat())
            self._look_at_step()

    def _look_at_step(self) -> None:
        """Say whether steps end, which the scheduler sees as well; sooner or later somebody must restart this."""
        held_s, was_held = self._compute.held_s, self._is_held
        self._is_held = held_s >= STEP_BOUND_S
        if self._is_held and not was_held:
            _log.error("step_held", seq=self._last_seq + 1, held_s=round(held_s, 1))
            self._readiness.set(False, f"step {self._last_seq + 1} has not ended within {STEP_BOUND_S:g} s")
        elif was_held and not self._is_held and self._is_welcome:
            self._readiness.set(True)

    def _heartbeat(self) -> worker_pb2.ConnectRequest:
        return worker_pb2.ConnectRequest(
            heartbeat=worker_pb2.Heartbeat(
                last_executed_seq=self._last_seq,
                last_received_seq=self._received.last_seq,
                draining=self._is_draining,
            )
        )

    async def _end_when_left(self, outbox: Outbox, limit: asyncio.Timeout) -> None:
        await self._leaving.wait()
        await self._compute.idle()
        outbox.put_nowait(worker_pb2.ConnectRequest(leave=worker_pb2.Leave()))
        outbox.put_nowait(None)
        limit.reschedule(asyncio.get_running_loop().time() + LEAVE_TIMEOUT_S)


async def _end_when_silent(hearing: Hearing, limit: asyncio.Timeout) -> None:
    await hearing.silence(SILENCE_S)
    limit.reschedule(asyncio.get_running_loop().time())


async def _write(call: Call, outbox: Outbox) -> None:
    """The only writer of the stream. Ends with the stream; why it ended is the reader's to see."""
    try:
        while (message := await outbox.get()) is not None:
            await call.write(message)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
