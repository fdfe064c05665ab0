"""Time in which this process did not run says nothing of others."""

import asyncio
import time

import pytest

from octavo import loop_clock
from octavo.loop_clock import Hearing


@pytest.fixture(autouse=True)
def _small_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_clock, "TICK_S", 0.02)
    monkeypatch.setattr(loop_clock, "MOST_S", 0.04)


def be_stopped(seconds: float) -> None:
    """As far as the loop can tell."""
    time.sleep(seconds)


async def test_it_counts_the_time_in_which_the_loop_runs() -> None:
    began_s = loop_clock.now_s()
    await asyncio.sleep(0.3)
    assert 0.2 <= loop_clock.now_s() - began_s <= 0.5


async def test_it_does_not_count_a_time_in_which_the_process_was_stopped() -> None:
    began_s = loop_clock.now_s()
    be_stopped(0.5)
    assert loop_clock.now_s() - began_s <= 0.04
    await asyncio.sleep(0.1)
    assert loop_clock.now_s() - began_s <= 0.3


async def test_it_never_goes_back() -> None:
    seen = [loop_clock.now_s()]
    for stop_s in (0.0, 0.1, 0.0, 0.06):
        be_stopped(stop_s)
        seen.append(loop_clock.now_s())
        await asyncio.sleep(0.03)
        seen.append(loop_clock.now_s())
    assert seen == sorted(seen)


async def test_silence_is_what_the_other_did_not_say_while_we_listened() -> None:
    hearing = Hearing()
    silence = asyncio.create_task(hearing.silence(0.3))
    await asyncio.sleep(0.05)
    be_stopped(0.5)
    await asyncio.sleep(0.05)
    assert not silence.done()
    hearing.heard()
    await asyncio.sleep(0.2)
    assert not silence.done()
    await asyncio.wait_for(silence, 1)


async def test_a_timer_waits_for_time_that_was_really_waited() -> None:
    called: list[str] = []
    loop_clock.call_later(0.2, called.append, "late")
    loop_clock.call_later(0.2, called.append, "never").cancel()
    await asyncio.sleep(0.01)
    be_stopped(0.4)
    await asyncio.sleep(0.01)
    assert not called
    await asyncio.sleep(0.4)
    assert called == ["late"]


async def test_an_answer_that_came_while_we_were_stopped_is_in_time() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(loop_clock.is_done_within(answer, 0.2))
    await asyncio.sleep(0.01)
    be_stopped(0.4)
    asyncio.get_running_loop().call_later(0.05, answer.set_result, 1)
    assert await waiting
    assert not await loop_clock.is_done_within(asyncio.get_running_loop().create_future(), 0.05)
