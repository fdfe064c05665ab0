"""A connection to one peer that is replaced when it seems to be half open: gRPC itself would trust it for long.

Calls under way on the old connection end by their own deadlines; then it is closed.
"""

import asyncio
from typing import Final

import grpc

from octavo import client
from octavo.loop_clock import now_s

SHORTEST_LIFE_S: Final = 0.5  # of a connection: several calls that fail at once replace it once


class Connection:
    """Hands out the channel that there is now."""

    def __init__(self, target: str, *, longest_call_s: float, tasks: asyncio.TaskGroup) -> None:
        self.channel = client.own_channel(target)
        self._target = target
        self._longest_call_s = longest_call_s
        self._tasks = tasks
        self._made_s = now_s()
        self._closing: set[asyncio.Task[None]] = set()

    def renew(self) -> None:
        """The next calls go over a new connection, unless this one is new itself."""
        if now_s() - self._made_s < SHORTEST_LIFE_S:
            return
        closing = self._tasks.create_task(self._close_later(self.channel), name="close-connection")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self.channel, self._made_s = client.own_channel(self._target), now_s()

    async def close(self) -> None:
        """Nobody calls any more."""
        for closing in self._closing:
            closing.cancel()
        await self.channel.close(None)

    async def _close_later(self, channel: grpc.aio.Channel) -> None:
        try:
            await asyncio.sleep(self._longest_call_s)
        finally:
            await channel.close(None)
