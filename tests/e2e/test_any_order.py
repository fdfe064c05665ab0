"""The services, each started when it is its turn, in orders that nobody would choose: they find each other."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from octavo.cli import ports, serve_flags, serve_plan, serve_ready
from octavo.cli.child import Child
from octavo.cli.serve_plan import Plan
from tests.e2e.stack import free_port

LIMIT_S = 240.0  # for all to start, on a busy machine
BETWEEN_S = 3.0  # the first tries of one that is early have failed by then


@pytest.fixture
def plan() -> Iterator[Plan]:
    folder = Path(tempfile.mkdtemp(prefix="order"))  # pytest's folders are too deep for a socket's path
    flags = ["--dtype", "float32", "--port", str(free_port()), "--grpc-port", str(free_port())]
    yield serve_plan.make(serve_plan.load(serve_flags.parse(flags), os.environ), folder, os.environ)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("order", [
    ("gateway", "worker-0", "scheduler", "kvcache", "redis"),
    ("worker-0", "kvcache", "gateway", "redis", "scheduler"),
])  # fmt: skip
async def test_services_started_in_any_order_serve(plan: Plan, order: tuple[str, ...]):
    programs = {program.name: program for program in plan.programs}
    assert sorted(programs) == sorted(order)
    children: list[Child] = []
    async with asyncio.TaskGroup() as tasks:
        try:
            for name in order:
                children.append(await Child.start(programs[name], lambda *_: None))
                tasks.create_task(children[-1].follow())
                await asyncio.sleep(BETWEEN_S)
            async with asyncio.timeout(LIMIT_S):
                await serve_ready.wait(plan, serve_ready.Phases(), lambda *_: None)
            assert all(child.is_running for child in children)
            assert ports.listens(children[order.index("gateway")].pid, plan.http_addr[1])
            async with httpx.AsyncClient(timeout=LIMIT_S) as client:
                body = {"prompt": "One, two,", "max_tokens": 4}
                (await client.post(f"{plan.http_url}/v1/completions", json=body)).raise_for_status()
        finally:
            for child in children:
                child.kill()
