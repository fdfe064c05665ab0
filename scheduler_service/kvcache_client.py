"""The one PlanStep stream to the KV cache service, and the few calls beside it.

A plan is kept until it is answered and sent again byte for byte on a new stream; answers are matched by (pool, step).
What it cannot do is decide that a pool must be opened again: it raises PoolLost and the worker's loop does that.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo import client, errors, logs
from octavo.connection import Connection
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc
from octavo.loop_clock import Hearing, is_done_within
from scheduler_service import kvcache_wire
from scheduler_service.core.grant_log import Opening
from scheduler_service.core.plan import DeclaredTable, Grants, Identity, Plan, PoolFigures
from scheduler_service.worker_hello import Hello

ANSWER_TIMEOUT_S: Final = 1.0  # of one plan; then it is sent again on a new stream
MAX_TRIES: Final = 2
CALL_TIMEOUT_S: Final = 2.0  # of OpenPool and ClosePool
CHECK_S: Final = 0.5  # without a word from the service, after which it is asked whether it is there
AWAY_S: Final = 2.0  # without a word, after which it counts as away

_log = logs.get(__name__)


class PoolLost(Exception):
    """The pool is not as the scheduler left it, or nobody answers; open it with declared tables and plan anew."""


class PoolRefused(Exception):
    """This worker can have no pool, whatever is tried."""


_Key = tuple[str, int]  # pool and incarnation: a pool has one plan at a time


@dataclass(slots=True)
class _Asked:
    """A plan that was not answered yet."""

    request: pb.PlanStepRequest
    answer: "asyncio.Future[pb.PlanStepResponse]"


@asynccontextmanager
async def connected(target: str) -> AsyncIterator["KVCacheClient"]:
    """A client that keeps its stream up while the block runs; the service need not be there yet."""
    async with asyncio.TaskGroup() as tasks:
        connection = Connection(target, longest_call_s=CALL_TIMEOUT_S, tasks=tasks)
        made = KVCacheClient(connection)
        keeper = tasks.create_task(made.keep_connected(), name="kvcache-stream")
        checker = tasks.create_task(made.keep_checking(), name="kvcache-check")
        try:
            yield made
        finally:
            keeper.cancel()
            checker.cancel()
            await connection.close()


class KVCacheClient:
    """Asks for all pools of this scheduler."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._hearing: Hearing | None = None  # None: nothing has ever been heard
        self._asked: dict[_Key, _Asked] = {}
        self._incarnations: dict[_Key, int] = {}  # of the service, when it opened the pool
        self._openings: dict[_Key, int] = {}  # number of the last one
        self._present = 0  # incarnation of the service, as it last said
        self._is_doubtful = False  # a call failed or the stream was lost: it may be another service by now
        self._restarted = asyncio.Event()
        self._outbox: asyncio.Queue[pb.PlanStepRequest] = asyncio.Queue()
        self._is_wanted = asyncio.Event()  # somebody has asked since the stream was lost
        self._call: Any = None
        self._is_loss_told = False  # of the stream, since the last answer

    @property
    def is_connected(self) -> bool:
        """Whether the service has been heard lately."""
        return self._hearing is not None and self._hearing.silent_s < AWAY_S

    async def restarted(self) -> None:
        """Return when a service is there that has not opened every pool: a pool without plans shows it nowhere else."""
        await self._restarted.wait()
        self._restarted.clear()

    def has_pool(self, hello: Hello) -> bool:
        """Whether the service of now opened this worker's pool, as far as is known."""
        return self._incarnations.get(_key(hello)) == self._present

    async def open_pool(
        self, hello: Hello, tables: Iterable[DeclaredTable], *, opening: Opening, scheduler_incarnation: int
    ) -> PoolFigures:
        """Open a worker's pool, or open it again, with the tables in use; how it is used then.

        Raises PoolLost when the service is away, PoolRefused when it will not have it or would hash it as another.
        """
        request = kvcache_wire.open_pool(hello, tables, opening=opening, scheduler_incarnation=scheduler_incarnation)
        try:
            response = await self._stub.OpenPool(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            failure = self._failed(error)
            if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                raise PoolRefused(f"{failure.reason}: {failure.message}") from None
            raise PoolLost(failure.message) from None
        self._heard()
        _check_fingerprint(hello, response)
        self._incarnations[_key(hello)] = self._present = response.kvcache_incarnation
        self._openings[_key(hello)] = opening.number
        _log.info(
            "pool_opened", pool_id=hello.worker_id, opening=opening.number,
            restore_outcome=kvcache_wire.restore_outcome(response),
            num_restored_blocks=response.num_restored_blocks,
        )  # fmt: skip
        return kvcache_wire.figures(response.figures)

    async def close_pool(self, hello: Hello) -> bool:
        """That worker incarnation is over; false when the service could not be told."""
        self._incarnations.pop(_key(hello), None)
        self._openings.pop(_key(hello), None)
        request = pb.ClosePoolRequest(pool_id=hello.worker_id, incarnation=hello.incarnation)
        try:
            await self._stub.ClosePool(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._failed(error)
            return False
        return True

    async def match(self, prompts: Iterable[tuple[Iterable[int], Identity]]) -> list[dict[str, int]]:
        """Per prompt, how many of its tokens each pool holds; nothing known when the service is away."""
        request = kvcache_wire.match(prompts)
        try:
            return kvcache_wire.matches(await self._stub.Match(request, timeout=ANSWER_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            problem = self._failed(error).message
            if self.is_connected:  # else it was told that the service is away
                _log.warning("match_failed", problem=problem)
            return [{} for _ in request.queries]

    async def plan(self, hello: Hello, plan: Plan) -> Grants:
        """What a plan got. Raises PoolLost when the pool must be opened again."""
        key = _key(hello)
        request = kvcache_wire.plan(plan, hello, opening=self._openings.get(key, 0))
        asked = _Asked(request, asyncio.get_running_loop().create_future())
        self._asked[key] = asked
        try:
            response = await self._answer(asked)
        finally:
            del self._asked[key]
        if response.kvcache_incarnation != self._incarnations.get(key):
            raise PoolLost("the KV cache service was restarted")
        if response.HasField("refusal"):
            refusal = response.refusal
            assert refusal.reason != "BAD_PLAN", f"plan {plan.step} of {hello.worker_id}: {refusal.message}"
            raise PoolLost(f"{refusal.reason}: {refusal.message}")
        return kvcache_wire.grants(response.grants)

    async def _answer(self, asked: _Asked) -> pb.PlanStepResponse:
        self._is_wanted.set()
        self._outbox.put_nowait(asked.request)
        for _ in range(MAX_TRIES):
            if await is_done_within(asked.answer, ANSWER_TIMEOUT_S):
                return asked.answer.result()
            _log.warning("plan_not_answered", pool_id=asked.request.pool_id, step=asked.request.step)
            self._drop_stream()
        raise PoolLost(f"no answer to plan {asked.request.step} within {MAX_TRIES * ANSWER_TIMEOUT_S:g} s")

    def _drop_stream(self) -> None:
        """Begin a new stream, on a new connection, which sends again what is not answered."""
        self._is_wanted.set()
        self._connection.renew()
        if self._call is not None:
            self._call.cancel()

    async def keep_connected(self) -> None:
        """One stream after the other, for ever; a new one only when somebody asks."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            self._outbox = asyncio.Queue()
            for asked in self._asked.values():
                self._outbox.put_nowait(asked.request)
            started_s = time.monotonic()
            problem = await self._run_stream(self._outbox)
            self._is_doubtful = True
            if not self._is_loss_told:
                self._is_loss_told = True
                _log.info("plan_stream_lost", problem=problem, num_unanswered=len(self._asked))
            if self._asked:
                self._is_wanted.set()
            if time.monotonic() - started_s < client.RETRY_SCHEDULE_S[1]:
                await asyncio.sleep(client.RETRY_SCHEDULE_S[1])  # a service that is away is not dialled in a tight loop

    async def keep_checking(self) -> None:
        """Ask whether the service is there, for ever, whenever it has said nothing for CHECK_S; say what changes."""
        was_connected = False
        while True:
            await (asyncio.sleep(CHECK_S) if self._hearing is None else self._hearing.silence(CHECK_S))
            problem = ""
            try:
                health = health_pb2_grpc.HealthStub(self._connection.channel)
                await health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_TIMEOUT_S)
                self._heard()
                if self._is_doubtful:
                    await self._look_for_restart()
            except grpc.aio.AioRpcError as error:
                problem = self._failed(error).message
            if was_connected and not self.is_connected:
                _log.warning("kvcache_silent", problem=problem, silent_s=AWAY_S)
            elif self.is_connected and not was_connected:
                _log.info("kvcache_heard")
            was_connected = self.is_connected
            await asyncio.sleep(CHECK_S if problem else 0)

    async def _look_for_restart(self) -> None:
        self._is_doubtful = False
        stats = await self._stub.GetStats(pb.GetStatsRequest(), timeout=ANSWER_TIMEOUT_S)
        self._present = stats.kvcache_incarnation
        if any(incarnation != self._present for incarnation in self._incarnations.values()):
            self._restarted.set()

    @property
    def _stub(self) -> kvcache_pb2_grpc.KVCacheServiceStub:
        return kvcache_pb2_grpc.KVCacheServiceStub(self._connection.channel)

    def _heard(self) -> None:
        if self._hearing is None:
            self._hearing = Hearing()
        self._hearing.heard()

    def _failed(self, error: grpc.aio.AioRpcError) -> errors.Failure:
        """What a failed call says; a connection on which nothing comes back is replaced."""
        self._is_doubtful = True
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._drop_stream()
        elif error.code() is not grpc.StatusCode.UNAVAILABLE:
            self._heard()
        return errors.from_rpc_error(error)

    async def _run_stream(self, outbox: asyncio.Queue[pb.PlanStepRequest]) -> str:
        """One stream from its first request to its loss; what ended it."""
        self._call = call = self._stub.PlanStep()
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(_write(call, outbox), name="kvcache-stream-writer")
            try:
                async for response in call:
                    self._take(response)
                return "it ended the stream"
            except grpc.aio.AioRpcError as error:
                return errors.from_rpc_error(error).message
            except asyncio.CancelledError:
                if call.cancelled() and not client.is_task_cancelled():
                    return "a plan was not answered in time"
                raise
            finally:
                self._call = None
                call.cancel()
                writer.cancel()

    def _take(self, response: pb.PlanStepResponse) -> None:
        """Hand an answer to whoever waits for exactly this plan; late and double ones are dropped."""
        self._heard()
        self._is_loss_told = False
        asked = self._asked.get((response.pool_id, response.incarnation))
        if asked is None or asked.answer.done():
            return
        if _is_answer(response, asked.request):
            asked.answer.set_result(response)


async def _write(call: Any, outbox: asyncio.Queue[pb.PlanStepRequest]) -> None:
    """The only writer of a stream. A failed write is left to the reader, which learns why."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outbox.get())


def _check_fingerprint(hello: Hello, response: pb.OpenPoolResponse) -> None:
    """A service that hashes otherwise than this worker's blocks are named would answer hits that are none."""
    theirs = kvcache_wire.fingerprint_of(response)
    name = hello.fingerprint.difference(theirs)
    if name is not None:
        mine, its = (getattr(fingerprint, name) for fingerprint in (hello.fingerprint, theirs))
        shown = [value.hex() if isinstance(value, bytes) else value for value in (its, mine)]
        raise PoolRefused(
            f"FINGERPRINT_MISMATCH: {name} of the KV cache service is {shown[0]!r}; worker {hello.worker_id} has "
            f"{shown[1]!r}, and its blocks would be found under hashes of something else"
        )


def _is_answer(response: pb.PlanStepResponse, request: pb.PlanStepRequest) -> bool:
    """Whether it is to this plan of the pool: numbers of plans begin again with every opening."""
    is_same_opening = response.session == request.session and response.opening == request.opening
    return is_same_opening and response.step == request.step


def _key(hello: Hello) -> _Key:
    return (hello.worker_id, hello.incarnation)
