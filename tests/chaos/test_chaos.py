"""Any one thing may go wrong, or two at nearly the same time: every stream ends as if nothing had been.

One stack for all of it: what a fault leaves behind meets the next one. `python -m tests.chaos` does the same for hours.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos import campaign
from tests.chaos.campaign import Campaign
from tests.chaos.faults import Fault, Targets, draw, draw_other, each_once

SEED = 4
LONGEST_S = 5.0
PAIRS = range(4)

ALL = campaign.targets(2)
TARGETS = Targets(  # the second worker is like the first
    processes=[name for name in ALL.processes if name != "worker-1"],
    links=[name for name in ALL.links if name != "worker-1-scheduler"],
    message_links=[name for name in ALL.message_links if name != "worker-1-scheduler"],
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Campaign]:
    folder = tmp_path_factory.mktemp("chaos")
    async with campaign.started(folder, seed=SEED, num_streams=8, num_requests=80) as started:
        yield started


@pytest.mark.parametrize("fault", each_once(TARGETS, seed=SEED, longest_s=LONGEST_S), ids=lambda fault: fault.what)
async def test_every_stream_is_exact_through(running: Campaign, fault: Fault):
    done = await running.provoke([fault])
    assert not done.complaints, f"{fault}: {'; '.join(done.complaints)}"


@pytest.mark.parametrize("number", PAIRS)
async def test_every_stream_is_exact_through_two_faults_2_s_apart(running: Campaign, number: int):
    first = draw(TARGETS, seed=SEED, number=number, longest_s=LONGEST_S)
    second = draw_other(TARGETS, first, seed=SEED, number=number)
    done = await running.provoke([first, second])
    assert not done.complaints, f"{first} + {second}: {'; '.join(done.complaints)}"


async def test_nothing_is_left_once_all_is_quiet(running: Campaign):
    assert not await running.quiet()
