"""Scenario 95 on the wire between gateway and scheduler: whatever is lost, doubled, swapped, late or cut, every request
ends with the tokens of an undisturbed run, once each; and what is silent for too long is dialled again.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway import dialled_session
from octavo.scheduler.v1 import scheduler_pb2 as pb
from scheduler_service import gateway_session, session_stream
from tests.fakes.paged_worker import continuation
from tests.faults import gateway_side
from tests.faults import rig as rigs
from tests.faults.proxy import Direction, Fault, Faults
from tests.faults.rig import Rig

NUM_REQUESTS = 8
MAX_TOKENS = 60


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules with shorter waits."""
    monkeypatch.setattr(dialled_session, "BEAT_S", 0.1)
    monkeypatch.setattr(dialled_session, "SILENCE_S", 0.8)
    monkeypatch.setattr(gateway_session, "BEAT_S", 0.1)
    monkeypatch.setattr(session_stream, "SILENCE_S", 0.8)


def prompt(number: int) -> list[int]:
    return [*range(100, 130), 1000 + number]


def faults(kinds: list[Fault], directions: list[Direction], *, seed: int, rate: float = 0.1, most: int = 4) -> Faults:
    return Faults(kinds=kinds, directions=directions, seed=seed, rate=rate, most=most)


async def run(rig: Rig, *, step_s: float = 0.004) -> None:
    """Every request ends right, some of them submitted while others run, and nothing is left anywhere."""
    await rig.add_worker(step_s=step_s)
    async with gateway_side.dialling(rig.session_addr) as gateway:
        await gateway.until_ready()
        answers = []
        for number in range(NUM_REQUESTS):
            answers.append(gateway.submit(prompt(number), MAX_TOKENS))
            await asyncio.sleep(0.02)
        for number, answer in enumerate(answers):
            await asyncio.wait_for(answer.end(), 20)
            assert answer.token_ids == continuation(prompt(number), MAX_TOKENS)
        assert gateway.session.num_open == 0
    await rig.stack.idle()


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
@pytest.mark.parametrize("kind", Fault, ids=lambda kind: kind.value)
async def test_every_request_ends_with_its_own_tokens(tmp_path: Path, kind: Fault, direction: Direction) -> None:
    drawn = faults([kind], [direction], seed=1)
    async with rigs.started(tmp_path, on_session=drawn) as rig:
        await run(rig)
    assert drawn.done[direction, kind] > 0


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 32))
async def test_everything_at_once(tmp_path: Path, seed: int) -> None:
    session = faults(list(Fault), list(Direction), seed=seed, most=12)
    link = faults(list(Fault), list(Direction), seed=-seed, rate=0.04, most=6)
    async with rigs.started(tmp_path, on_session=session, on_worker_link=link) as rig:
        await run(rig)
    assert session.done.total() > 0


async def test_an_undisturbed_run_needs_one_stream(tmp_path: Path) -> None:
    async with rigs.started(tmp_path) as rig:
        await run(rig)
        assert rig.session_wire.num_streams == 1


def _is_submit(message: bytes) -> bool:
    return pb.SessionRequest.FromString(message).HasField("submit")


def _is_end(message: bytes) -> bool:
    return bool(pb.SessionResponse.FromString(message).events.finished)


@pytest.mark.parametrize(
    ("direction", "is_meant"), [(Direction.UP, _is_submit), (Direction.DOWN, _is_end)], ids=["the submit", "the end"]
)
async def test_when_the_last_message_gets_lost_the_next_beat_tells(
    tmp_path: Path, direction: Direction, is_meant: Callable[[bytes], bool]
) -> None:
    drawn = faults([Fault.DROP], [direction], seed=1, rate=1.0, most=1)
    drawn.concern = is_meant
    async with rigs.started(tmp_path, on_session=drawn) as rig:
        await rig.add_worker()
        async with gateway_side.dialling(rig.session_addr) as gateway:
            await gateway.until_ready()
            answer = gateway.submit(prompt(0), 5)
            await asyncio.wait_for(answer.end(), 10)
            assert answer.token_ids == continuation(prompt(0), 5)
            assert (drawn.done.total(), rig.session_wire.num_streams) == (1, 2)


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
async def test_a_stream_on_which_nothing_comes_through_one_way_is_left_by_both(
    tmp_path: Path, direction: Direction
) -> None:
    async with rigs.started(tmp_path) as rig:
        await rig.add_worker(step_s=0.02)
        async with gateway_side.dialling(rig.session_addr) as gateway:
            await gateway.until_ready()
            answer = gateway.submit(prompt(0), MAX_TOKENS)
            await asyncio.sleep(0.1)
            rig.session_wire.hold(direction)
            await gateway.until_ready(False)
            (session,) = (each for each in rig.stack.engine.gateways if each.gateway_id == "g1")
            await rig.stack.until(lambda: not session.is_connected)
            rig.session_wire.let_go(direction)
            await asyncio.wait_for(answer.end(), 10)
            assert answer.token_ids == continuation(prompt(0), MAX_TOKENS)
