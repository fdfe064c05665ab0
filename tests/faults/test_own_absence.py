"""A process that was stopped, and goes on, takes nobody for dead because of the time that it missed itself.

All of the system runs in this process here, so all of it is stopped at once; `make test-chaos` stops one real process.
"""

import asyncio
import time
from pathlib import Path

import pytest

from gateway import dialled_session
from gpu_worker import scheduler_link
from octavo import loop_clock
from scheduler_service import gateway_session, kvcache_client, session_stream, worker_link
from scheduler_service.core import progress
from tests.fakes.paged_worker import continuation
from tests.faults import gateway_side
from tests.faults import rig as rigs

MAX_TOKENS = 60
STOPPED_S = 1.5  # longer than anybody waits for anybody


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_clock, "TICK_S", 0.05)
    monkeypatch.setattr(loop_clock, "MOST_S", 0.1)
    for module in (dialled_session, session_stream, scheduler_link, worker_link):
        monkeypatch.setattr(module, "SILENCE_S", 0.8)
    for module in (dialled_session, gateway_session, worker_link):
        monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(scheduler_link, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(kvcache_client, "ANSWER_TIMEOUT_S", 0.8)
    monkeypatch.setattr(kvcache_client, "AWAY_S", 0.8)
    for bound in ("STALLED_AFTER_S", "STEP_STALLED_AFTER_S", "HOPELESS_AFTER_S"):
        monkeypatch.setattr(progress, bound, 1.0)


async def test_everybody_goes_on_with_everybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rigs.started(tmp_path) as rig:
        await rig.add_worker(step_s=0.02)
        async with gateway_side.dialling(rig.session_addr) as gateway:
            await gateway.until_ready()
            answers = [gateway.submit([*range(100, 130), number], MAX_TOKENS) for number in range(4)]
            await asyncio.sleep(0.3)
            time.sleep(STOPPED_S)  # noqa: ASYNC251 - the loop is to stand still
            for number, answer in enumerate(answers):
                await asyncio.wait_for(answer.end(), 10)
                assert answer.token_ids == continuation([*range(100, 130), number], MAX_TOKENS)
            assert all(state.is_ready for state in gateway.states[-2:])
            streams = (rig.session_wire.num_streams, rig.worker_wire.num_streams, rig.plan_wire.num_streams)
            assert streams == (1, 1, 1)
            assert rig.loop().core.figures.num_preemptions == 0
        await rig.stack.idle()
    said = {record.getMessage() for record in caplog.records}
    assert not said & {"plan_not_answered", "no_progress", "worker_lost", "scheduler_lost", "pool_lost"}
