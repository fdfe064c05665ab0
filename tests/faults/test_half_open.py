"""A connection on which nothing comes through any more, while both ends keep it: noticed in about 3 s on each wire, and
left for a new one. No token is lost, repeated or changed.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway import dialled_session
from gpu_worker import scheduler_link
from scheduler_service import gateway_session, kvcache_client, session_stream, worker_link
from tests.fakes.paged_worker import continuation
from tests.faults import gateway_side, half_open
from tests.faults.gateway_side import Answer, GatewaySide
from tests.faults.half_open import StrandingProxy
from tests.faults.proxy import Proxy
from tests.faults.rig import Rig, no_faults
from tests.scheduler_service.stack import Stack

MAX_TOKENS = 60
NUM_REQUESTS = 4


class Site:
    """The system as it is, with a byte proxy in each of its inner wires."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.session: StrandingProxy
        self.link: StrandingProxy
        self.plan: StrandingProxy
        self.gateway: GatewaySide
        self.rig: Rig

    def submit(self) -> list[Answer]:
        return [self.gateway.submit(prompt(number), MAX_TOKENS) for number in range(NUM_REQUESTS)]

    async def all_right(self, answers: list[Answer]) -> float:
        """All end with the right tokens; how long that took."""
        began_s = time.monotonic()
        for number, answer in enumerate(answers):
            await asyncio.wait_for(answer.end(), 15)
            assert answer.token_ids == continuation(prompt(number), MAX_TOKENS)
        await self.stack.idle()
        return time.monotonic() - began_s


def prompt(number: int) -> list[int]:
    return [*range(200, 230), 3000 + number]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules, three times as fast."""
    monkeypatch.setattr(dialled_session, "BEAT_S", 0.3)
    monkeypatch.setattr(dialled_session, "SILENCE_S", 1.0)
    monkeypatch.setattr(gateway_session, "BEAT_S", 0.3)
    monkeypatch.setattr(session_stream, "SILENCE_S", 1.0)
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", 0.15)
    monkeypatch.setattr(scheduler_link, "SILENCE_S", 0.7)
    monkeypatch.setattr(worker_link, "BEAT_S", 0.15)
    monkeypatch.setattr(worker_link, "SILENCE_S", 2.0)
    monkeypatch.setattr(kvcache_client, "ANSWER_TIMEOUT_S", 0.4)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as exits:
        stack = Stack(tmp_path, exits)
        made = Site(stack, tmp_path)
        sched, kv = str(tmp_path / "sched.sock"), str(tmp_path / "kv.sock")
        paths = {name: str(tmp_path / f"{name}.sock") for name in ("session", "link", "plan")}
        made.session = await exits.enter_async_context(half_open.listening(paths["session"], sched))
        made.link = await exits.enter_async_context(half_open.listening(paths["link"], sched))
        made.plan = await exits.enter_async_context(half_open.listening(paths["plan"], kv))
        await stack.start_kvcache()
        stack.kvcache_dialled = f"unix:{paths['plan']}"
        await stack.start_scheduler()
        unused = Proxy("", "", no_faults())
        made.rig = Rig(stack, unused, unused, scheduler_addr=f"unix:{paths['link']}")
        try:
            await made.rig.add_worker(step_s=0.03)
            made.gateway = await exits.enter_async_context(gateway_side.dialling(f"unix:{paths['session']}"))
            await made.gateway.until_ready()
            yield made
        finally:
            await made.rig.close()
            await stack.close()


async def mended(site: Site, wire: StrandingProxy) -> None:
    """Strand a wire in the middle of answers: all come in time, over one connection more."""
    answers = site.submit()
    await asyncio.sleep(0.3)
    wire.strand()
    assert await site.all_right(answers) < 8
    assert wire.num_connections == 2


async def test_between_gateway_and_scheduler(site: Site) -> None:
    await mended(site, site.session)
    assert site.rig.loop().core.figures.num_preemptions == 0


async def test_between_worker_and_scheduler_the_incarnation_survives(site: Site) -> None:
    await mended(site, site.link)
    assert site.rig.loop().link.hello.session == 2
    assert site.rig.loop().core.figures.num_preemptions == 0


async def test_between_scheduler_and_kv_cache_service_while_plans_are_asked(site: Site) -> None:
    await mended(site, site.plan)
    assert site.rig.loop().core.figures.num_preemptions == 0


async def test_between_scheduler_and_kv_cache_service_while_nobody_asks(site: Site) -> None:
    """It is noticed and mended before the next request comes."""
    site.plan.strand()
    await site.stack.until(lambda: site.plan.num_connections == 2)
    assert await site.all_right(site.submit()) < 4


async def test_before_a_pool_is_opened(site: Site) -> None:
    """OpenPool, not PlanStep, finds out: it is asked again on a new connection."""
    site.plan.strand()
    loop = site.rig.loop()
    loop._pool.reopen()
    answers = site.submit()
    assert await site.all_right(answers) < 8
