"""A process whose work never ends, for tests of its end: python -m tests.octavo.lingering_service ADDRESS KIND."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo import server, shutdown


async def main() -> None:
    _, address, kind = sys.argv
    if kind == "starting":
        print("starting", flush=True)
        await asyncio.Event().wait()

    async def drain() -> None:
        print("draining", flush=True)
        if kind != "idle":
            await asyncio.Event().wait()

    async with closing_what_hangs() if kind == "hanging" else closing_at_once():
        await server.serve(address, lambda _: None, {}, service_names=[], drain=drain, drain_timeout_s=60)


@asynccontextmanager
async def closing_at_once() -> AsyncIterator[None]:
    try:
        yield
    finally:
        print("closed", flush=True)


@asynccontextmanager
async def closing_what_hangs() -> AsyncIterator[None]:
    try:
        yield
    finally:
        time.sleep(60)  # noqa: ASYNC251 - not even the event loop runs


if __name__ == "__main__":
    signal.alarm(50)  # should the test be killed
    shutdown.run(main)
