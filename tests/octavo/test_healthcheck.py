"""The container health check, against a real server, as a process of its own."""

import asyncio
import subprocess
import sys

import pytest

from octavo import server
from octavo.server import Readiness


async def run_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo.healthcheck", *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("is_ready", "code", "status"), [(True, 0, "SERVING"), (False, 1, "NOT_SERVING")])
async def test_exit_status_says_whether_the_process_serves(is_ready: bool, code: int, status: str) -> None:
    readiness = Readiness(is_ready=is_ready)
    async with server.started("127.0.0.1:0", lambda _: None, {}, service_names=["x"], readiness=readiness) as running:
        done = await run_check(running.address)
    assert (done.returncode, done.stdout) == (code, f"{running.address} {status}\n")


async def test_nobody_listening_is_a_failure_that_names_the_address() -> None:
    done = await run_check("127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout.startswith("127.0.0.1:1 UNAVAILABLE")


async def test_without_an_address_it_says_how_to_call_it() -> None:
    done = await run_check()
    assert (done.returncode, done.stderr) == (2, "usage: python -m octavo.healthcheck ADDRESS\n")
