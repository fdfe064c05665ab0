"""A busy server, as its clients see it over both protocols: who is sent away, why, and when to come back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from octavo import errors
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.stack import Stack, greedy
from tests.octavo.cli.program import octavo

FLAGS = ("--max-num-seqs", "1", "--max-queue-len", "2", "--max-tenant-queue-len", "1", "--scheduling-policy", "fair",
         "--tenant-weights", "a=2,b=1")  # fmt: skip
PROMPT = [5, 6, 7]
NUM_TOKENS = 1500  # long enough for everything that a test does meanwhile


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    with Stack(folder, *FLAGS) as running:
        yield running


@asynccontextmanager
async def occupied(stack: Stack) -> AsyncIterator[InferenceServiceStub]:
    """The only place is taken for as long as the block runs."""
    async with grpc.aio.insecure_channel(stack.target) as channel:
        stub = InferenceServiceStub(channel)
        call = stub.Generate(greedy(PROMPT, max_tokens=NUM_TOKENS))
        await call.read()
        try:
            yield stub
        finally:
            call.cancel()


async def complete(http: httpx.AsyncClient, tenant: str, **headers: str) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    return await http.post("/v1/completions", json=body, headers={"x-tenant-id": tenant, **headers})


async def waiting(stack: Stack, num: int) -> None:
    """Return when so many wait."""
    async with asyncio.timeout(10), httpx.AsyncClient(base_url=stack.url) as http:
        while (await http.get("/load")).json()["waiting"] != num:  # noqa: ASYNC110 - nobody tells a client
            await asyncio.sleep(0.02)


async def status(stack: Stack) -> str:
    shown = await octavo("status", "--url", stack.url, "--scheduler-addr", str(stack.state["scheduler_addr"]))
    return shown.out


async def refusal(stub: InferenceServiceStub, tenant: str) -> errors.Failure:
    """Why a request is not taken."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(greedy(PROMPT, max_tokens=2), metadata=(("x-tenant-id", tenant),)).read()
    return errors.from_rpc_error(refused.value)


def test_a_full_queue_sends_away_with_the_time_to_come_back(stack: Stack) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http, occupied(stack) as stub:
            waiters = [asyncio.create_task(complete(http, tenant)) for tenant in "ab"]
            await waiting(stack, 2)
            assert (await complete(http, "c")).status_code == 429
            failure = await refusal(stub, "c")
            assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            assert failure.quota_subject == "requests"
            assert failure.retry_after_s is not None
            assert failure.metadata == {"num_waiting": "2", "max_queue_len": "2"}
            assert not any(waiter.done() for waiter in waiters)
            for waiter in waiters:
                waiter.cancel()
            await waiting(stack, 0)

    asyncio.run(run())


def test_a_tenant_whose_part_of_the_queue_is_full_is_sent_away(stack: Stack) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http, occupied(stack) as stub:
            waiter = asyncio.create_task(complete(http, "a"))
            await waiting(stack, 1)
            mine = await complete(http, "a")
            assert (mine.status_code, mine.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(mine.headers["retry-after"]) >= 1
            assert int(mine.headers["retry-after-ms"]) > 0
            failure = await refusal(stub, "a")
            assert (failure.reason, failure.quota_subject) == ("TENANT_QUOTA", "tenant:a")
            assert not waiter.done()
            waiter.cancel()
            await waiting(stack, 0)

    asyncio.run(run())


def test_a_timeout_over_http_is_a_deadline(stack: Stack) -> None:
    async def run() -> None:
        async with occupied(stack), httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
            late = await complete(http, "a", **{"x-request-timeout-ms": "300"})
            assert (late.status_code, late.json()["error"]["type"]) == (504, "timeout")
        assert (await asyncio.to_thread(httpx.get, f"{stack.url}/readyz")).status_code == 200

    asyncio.run(run())


def test_status_shows_who_waits_for_what(stack: Stack) -> None:
    async def run() -> str:
        async with occupied(stack), httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
            first = asyncio.create_task(complete(http, "acme"))
            await waiting(stack, 1)
            while "1 max_seqs" not in (shown := await status(stack)) and not first.done():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)  # no plan has been made with it yet
            first.cancel()
            return shown

    shown = asyncio.run(run())
    assert "served fair" in shown
    assert "1 acme" in shown
    assert "1 max_seqs" in shown
