"""The PlanStep stream: answers that come late, twice or never."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo import server
from octavo.columns import unpack
from octavo.common.v1 import common_pb2
from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc
from scheduler_service import kvcache_client
from scheduler_service.core.grant_log import GrantedBlocks, Opening, PlanPosition
from scheduler_service.core.plan import Plan
from scheduler_service.kvcache_client import KVCacheClient, PoolLost, PoolRefused
from scheduler_service.worker_hello import Fingerprint, Hello

HELLO = Hello(
    worker_id="w", incarnation=3, session=1, model_name="m", max_model_len=10, vocab_size=10, num_blocks=5,
    max_num_batched_tokens=8, last_executed_seq=0,
    fingerprint=Fingerprint(
        hash_scheme=1, model_digest=b"", tokenizer_digest=b"", block_size=16, kv_dtype="", kv_layout=""
    ),
)  # fmt: skip

OPENING = Opening(number=1, granted_after=PlanPosition(0, 0), granted=())


class ForgetfulService(kvcache_pb2_grpc.KVCacheServiceServicer):
    """Answers every plan but the first `num_forgotten`."""

    def __init__(self) -> None:
        self.num_forgotten = 0
        self.incarnation = 1
        self.refusal = ""
        self.block_size = 0  # other than asked
        self.opened: list[pb.OpenPoolRequest] = []
        self.asked: list[bytes] = []
        self.was_asked = asyncio.Event()

    async def OpenPool(self, request: pb.OpenPoolRequest, context: Any) -> pb.OpenPoolResponse:
        self.opened.append(request)
        theirs = common_pb2.Fingerprint()
        theirs.CopyFrom(request.fingerprint)
        if self.block_size:
            theirs.block_size = self.block_size
        return pb.OpenPoolResponse(kvcache_incarnation=self.incarnation, fingerprint=theirs)

    async def PlanStep(
        self, requests: AsyncIterator[pb.PlanStepRequest], context: Any
    ) -> AsyncIterator[pb.PlanStepResponse]:
        async for request in requests:
            self.asked.append(request.SerializeToString())
            self.was_asked.set()
            if len(self.asked) > self.num_forgotten:
                yield self._answer(request)

    def _answer(self, request: pb.PlanStepRequest) -> pb.PlanStepResponse:
        response = pb.PlanStepResponse(
            pool_id=request.pool_id, incarnation=request.incarnation, session=request.session,
            opening=request.opening, step=request.step, kvcache_incarnation=self.incarnation,
        )  # fmt: skip
        if self.refusal:
            response.refusal.reason = self.refusal
        else:
            response.grants.SetInParent()
        return response


async def open_pool(client: KVCacheClient, hello: Hello = HELLO, opening: Opening = OPENING) -> None:
    await client.open_pool(hello, (), opening=opening, scheduler_incarnation=9)


@pytest.fixture
def service() -> ForgetfulService:
    return ForgetfulService()


@pytest.fixture
async def client(
    service: ForgetfulService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KVCacheClient]:
    monkeypatch.setattr(kvcache_client, "ANSWER_TIMEOUT_S", 0.3)
    address = f"unix:{tmp_path}/kv.sock"
    register = partial(kvcache_pb2_grpc.add_KVCacheServiceServicer_to_server, service)
    async with (
        server.started(address, register, {}, service_names=["octavo.kvcache.v1.KVCacheService"]),
        kvcache_client.connected(address) as client,
    ):
        await open_pool(client)
        yield client


async def test_a_plan_is_answered(client: KVCacheClient) -> None:
    assert (await client.plan(HELLO, Plan(step=1))).grow_num_tokens is not None
    assert client.is_connected


async def test_an_unanswered_plan_is_sent_again_byte_for_byte(client: KVCacheClient, service: ForgetfulService) -> None:
    service.num_forgotten = 1
    await client.plan(HELLO, Plan(step=1, token_budget=7))
    assert len(service.asked) == 2
    assert service.asked[0] == service.asked[1]


async def test_a_plan_that_nobody_answers_loses_the_pool(client: KVCacheClient, service: ForgetfulService) -> None:
    service.num_forgotten = 100
    with pytest.raises(PoolLost, match="no answer"):
        await client.plan(HELLO, Plan(step=1))


async def test_a_restarted_service_loses_the_pool(client: KVCacheClient, service: ForgetfulService) -> None:
    service.incarnation = 2
    with pytest.raises(PoolLost, match="restarted"):
        await client.plan(HELLO, Plan(step=1))


async def test_an_unknown_pool_must_be_opened_again(client: KVCacheClient, service: ForgetfulService) -> None:
    service.refusal = "UNKNOWN_POOL"
    with pytest.raises(PoolLost, match="UNKNOWN_POOL"):
        await client.plan(HELLO, Plan(step=1))


async def test_plans_of_two_pools_do_not_wait_for_each_other(client: KVCacheClient, service: ForgetfulService) -> None:
    other = replace(HELLO, worker_id="v")
    await open_pool(client, other)
    service.num_forgotten = 1
    slow = asyncio.create_task(client.plan(HELLO, Plan(step=1)))
    await service.was_asked.wait()
    await asyncio.wait_for(client.plan(other, Plan(step=1)), 0.25)
    assert not slow.done()
    await slow


async def test_the_pool_is_opened_with_what_was_given_out_lately(
    client: KVCacheClient, service: ForgetfulService
) -> None:
    granted = [GrantedBlocks(PlanPosition(1, 4), [7, 8]), GrantedBlocks(PlanPosition(2, 1), [9])]
    await open_pool(client, opening=Opening(number=3, granted_after=PlanPosition(1, 2), granted=granted))
    request = service.opened[-1]
    assert (request.scheduler_incarnation, request.opening) == (9, 3)
    assert (request.granted_after_opening, request.granted_after_step) == (1, 2)
    assert [(each.opening, each.step, unpack("block_ids", each.block_ids).tolist()) for each in request.granted] == [
        (1, 4, [7, 8]),
        (2, 1, [9]),
    ]


async def test_a_service_that_hashes_otherwise_is_refused_by_name(
    client: KVCacheClient, service: ForgetfulService
) -> None:
    service.block_size = 32
    with pytest.raises(PoolRefused, match=r"FINGERPRINT_MISMATCH: block_size of the KV cache service is 32.*has 16"):
        await open_pool(client)


async def test_an_outage_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvcache_client, "ANSWER_TIMEOUT_S", 0.5)
    caplog.set_level(logging.INFO)
    async with kvcache_client.connected(f"unix:{tmp_path}/nobody.sock") as client:
        for step in (1, 2):
            with pytest.raises(PoolLost, match="no answer"):
                await client.plan(HELLO, Plan(step=step))
        assert not client.is_connected
    said = [record.getMessage() for record in caplog.records]
    assert said.count("plan_stream_lost") == 1


async def test_it_knows_that_the_service_is_there_though_nothing_is_asked(
    client: KVCacheClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvcache_client, "AWAY_S", 0.9)
    for _ in range(12):
        await asyncio.sleep(0.1)
        assert client.is_connected
