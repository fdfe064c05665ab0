"""One stream of plans: they are answered in order, until the scheduler ends it or the service leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Generic, TypeVar

LAST_PLANS_S: Final = 0.02  # for plans that are on their way when the service leaves; later ones are the next one's

Q = TypeVar("Q")  # a plan, and what it got
A = TypeVar("A")


class PlanStream(Generic[Q, A]):
    """Reads, answers and writes, one plan at a time."""

    def __init__(
        self,
        requests: AsyncIterator[Q],
        *,
        answer: Callable[[Q], A],
        write: Callable[[A], Awaitable[None]],
    ) -> None:
        self._requests = requests
        self._answer = answer
        self._write = write
        self._is_reading = True

    async def run(self, leaving: asyncio.Event) -> None:
        """Return when the scheduler has ended the stream, or the service leaves and what has come is answered."""
        answering = asyncio.ensure_future(self._answer_all())
        left = asyncio.ensure_future(leaving.wait())
        try:
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({answering}, timeout=LAST_PLANS_S)
            if not answering.done() and self._is_reading:  # never while it writes: the status would be lost
                answering.cancel()
            await asyncio.wait({answering})
        finally:
            left.cancel()
            answering.cancel()
            await asyncio.gather(left, answering, return_exceptions=True)
        if not answering.cancelled():
            answering.result()

    async def _answer_all(self) -> None:
        async for request in self._requests:
            self._is_reading = False
            await self._write(self._answer(request))
            self._is_reading = True
