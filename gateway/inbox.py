"""Where one call's updates pile up until its handler has time for them."""

import asyncio
from dataclasses import dataclass

from gateway.core.submission import Update


@dataclass(frozen=True, slots=True)
class Delivery:
    """An update for one answer of a call."""

    index: int
    update: Update


class Inbox:
    """Keeps the order; the reader takes everything at once, so a slow reader gets fewer and larger chunks.

    It needs no bound of its own: a request has at most max_tokens tokens.
    """

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._filled = asyncio.Event()

    def put(self, index: int, update: Update) -> None:
        self._deliveries.append(Delivery(index, update))
        self._filled.set()

    async def take(self, *, timeout_s: float | None = None) -> list[Delivery]:
        """All that piled up, at least one; empty only if nothing came within `timeout_s`."""
        if not self._deliveries:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._filled.wait()
            except TimeoutError:
                return []
        taken, self._deliveries = self._deliveries, []
        self._filled.clear()
        return taken
