"""What has come for one worker's scheduler and waits until a plan is settled: a core changes only between plans."""

import asyncio
from collections import deque
from collections.abc import Callable

from scheduler_service.core.request import Request


class Inbox:
    """Changes, made in the order in which they came. Requests that are in it count as the worker's."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._changes: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        """Whether there is a change left behind the one that is being made."""
        return bool(self._changes)

    def put(self, change: Callable[[], None]) -> None:
        """Something is to change."""
        self._changes.append(change)
        self.wake()

    def put_request(self, request: Request, submit: Callable[[], None]) -> None:
        """A request is to be submitted."""
        self.num_requests += 1
        self.num_tokens += request.num_known_tokens
        self.put(submit)

    def took(self, request: Request) -> None:
        """A request leaves the inbox."""
        self.num_requests -= 1
        self.num_tokens -= request.num_known_tokens

    def apply(self) -> None:
        """Make every change, those that come of them too."""
        while self._changes:
            self._changes.popleft()()

    def wake(self) -> None:
        """There may be something to do, though nothing has come."""
        self._wake.set()

    async def wait(self) -> None:
        """Return when something has come, or somebody has woken it, since the last time."""
        await self._wake.wait()
        self._wake.clear()
