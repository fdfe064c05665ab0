"""A pool that is opened again in the same session numbers its plans from 1 again: what comes late belongs to none."""

from pathlib import Path

import grpc
import pytest

from octavo import client
from octavo.errors import from_rpc_error
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1.kvcache_pb2_grpc import KVCacheServiceStub
from tests.fakes.paged_worker import continuation
from tests.fakes.worker_messages import a_hello
from tests.faults import rig as rigs

PROMPT = list(range(200, 240))


class LateAnswer:
    """Refuses a plan of the first opening, and answers the first plan of the second with what the first one's got."""

    def __init__(self) -> None:
        self.late: bytes | None = None
        self.is_refused = self.is_delivered = False

    def __call__(self, message: bytes) -> bytes:
        response = pb.PlanStepResponse.FromString(message)
        if (response.opening, response.step) == (1, 1):
            self.late = message
        elif response.opening == 1 and not self.is_refused:
            self.is_refused = True
            response.refusal.reason = "UNKNOWN_POOL"
            return response.SerializeToString()
        elif response.opening > 1 and not self.is_delivered and self.late is not None:
            self.is_delivered = True
            return self.late
        return message


async def test_the_answer_to_a_plan_of_the_opening_before_is_not_taken(tmp_path: Path) -> None:
    async with rigs.started(tmp_path) as rig:
        rig.plan_wire.rewrite = late = LateAnswer()
        await rig.add_worker()
        for number in range(3):
            await rig.gateway.submit(number, [*PROMPT, number], max_tokens=60)
        for number in range(3):
            await rig.gateway.end_of(number)
            assert rig.gateway.tokens[number] == continuation([*PROMPT, number], 60)
        await rig.stack.idle()
    assert late.is_delivered


def opening(number: int) -> pb.OpenPoolRequest:
    hello = a_hello("w0", 1, 64)
    return pb.OpenPoolRequest(
        pool_id="w0", incarnation=1, session=1, num_blocks=64, fingerprint=hello.fingerprint,
        scheduler_incarnation=9, opening=number,
    )  # fmt: skip


async def test_nothing_of_the_opening_before_is_applied(tmp_path: Path) -> None:
    async with rigs.started(tmp_path) as rig, client.channel(rig.stack.kvcache_addr) as channel:
        stub = KVCacheServiceStub(channel)
        for number in (1, 2):
            await stub.OpenPool(opening(number))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.OpenPool(opening(1))
        assert from_rpc_error(caught.value).reason == "STALE_SESSION"
        stream = stub.PlanStep()
        for number in (1, 2):
            await stream.write(pb.PlanStepRequest(pool_id="w0", incarnation=1, session=1, step=1, opening=number))
        late, right = await stream.read(), await stream.read()
        stream.cancel()
    assert (late.opening, late.refusal.reason) == (1, "STALE_SESSION")
    assert right.opening == 2
    assert right.HasField("grants")
