"""Work that ends with its client."""

import asyncio
from typing import Any

import pytest

from gateway.openai.edge import ClientGone
from gateway.openai.generating import while_connected


async def connected() -> Any:
    await asyncio.Event().wait()


async def gone() -> Any:
    return {"type": "http.disconnect"}


async def test_the_result_is_returned_while_the_client_waits():
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    assert await while_connected(work(), connected) == 5


async def test_work_is_cancelled_when_the_client_has_gone():
    is_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    with pytest.raises(ClientGone):
        await while_connected(work(), gone)
    assert is_cancelled.is_set()


async def test_an_exception_of_the_work_is_raised_as_it_is():
    async def work() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await while_connected(work(), connected)


async def test_that_the_client_has_gone_explains_what_its_cancellation_broke():
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in clean-up")

    with pytest.raises(ClientGone):
        await while_connected(work(), gone)


async def test_cancelling_the_caller_cancels_the_work():
    task = asyncio.create_task(while_connected(asyncio.sleep(60), connected))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
