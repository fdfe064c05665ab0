"""What long streams have in common: one writer each, and both directions ending together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Generic, TypeVar

LAST_WRITE_S: Final = 1.0  # for a write in progress to end, when its stream is to end

T = TypeVar("T")


class Outbox(Generic[T]):
    """Messages that wait for the one writer of a stream."""

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, message: T) -> None:
        self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        """End the stream when everything is written."""
        self._is_closed = True
        self._changed.set()

    async def write_to(self, write: Callable[[T], Awaitable[None]]) -> None:
        """Write in order, until closed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._messages:
                await write(self._messages.popleft())
            if self._is_closed:
                return


def whole(write: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
    """The same, but cancelling it waits for the end of the write.

    A status that grpc is to send while a write is in progress is lost, and its peer waits on an open stream for ever.
    """

    async def write_whole(message: T) -> None:
        writing = asyncio.ensure_future(write(message))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing], timeout=LAST_WRITE_S)
            writing.cancel()
            writing.add_done_callback(_forget)
            raise

    return write_whole


def _forget(writing: "asyncio.Future[None]") -> None:
    """How the last write ended does not matter: the stream ends anyhow."""
    if not writing.cancelled():
        writing.exception()


async def first_of(*directions: Coroutine[None, None, None]) -> None:
    """Run all; when the first ends, cancel the others. Raises what the first raised."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
