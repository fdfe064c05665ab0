"""Requests that kill their worker, in random worlds of several workers: each ends alone, and nobody else notices.

A worker here dies when it computes what a request of the test marks. All it had in flight is lost with its blocks; its
requests go, in order, to whichever worker is next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import MAX_FAULTS, Entry, Request, Status
from tests.fakes.paged_worker import Mirror, PagedWorker, continuation
from tests.scheduler_service.core.rig import BLOCK_SIZE, Rig, a_request, family

POISON = 7  # a token that no family has


class WorkerDied(Exception):
    """In the middle of a step."""


class MortalWorker(PagedWorker):
    """Dies of a request that begins with POISON, at the position that its second token says; 0: of every decode."""

    def _write(self, sequence: Mirror, count: int, *, is_faulty: bool) -> None:
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + count
        if sequence.token_ids[0] == POISON:
            deadly = sequence.token_ids[1]
            if start <= deadly < end if deadly else count == 1 and start > 0:
                raise WorkerDied
        super()._write(sequence, count, is_faulty=is_faulty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A world, and where its requests' poison is: None = a neighbour."""

    num_workers: int
    window: int
    policy: Policy
    limits: Limits
    num_blocks: int
    deadly: Sequence[int | None]
    length: int
    max_tokens: int


class World:
    """Workers that are replaced when they die; how often, and who was in flight when a request was given up."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rigs = [self._new_rig() for _ in range(case.num_workers)]
        self.num_deaths = 0
        self.company: dict[Request, set[Request]] = {}
        self.requests = [self._request(number, deadly) for number, deadly in enumerate(case.deadly)]
        for number, request in enumerate(self.requests):
            self.rigs[number % case.num_workers].core.submit(request)

    def advance(self, number: int, *, is_running: bool) -> bool:
        """One worker plans a step, or runs one; False if there was nothing to do."""
        rig = self.rigs[number]
        has_planned = rig.plan() is not None
        if not rig.sent or not (is_running or not has_planned or len(rig.sent) == self.case.window):
            return has_planned
        try:
            rig.result()
        except WorkerDied:
            self._replace(number)
        return True

    def _replace(self, number: int) -> None:
        self.num_deaths += 1
        rig = self.rigs[number]
        in_flight = {request for sent in rig.core._flight.steps for request in sent.requests}
        requests, poisoned = rig.core.worker_lost()
        self.company.update({request: in_flight - {request} for request in poisoned})
        self.rigs[number] = self._new_rig()
        heir = self.rigs[(number + 1) % len(self.rigs)]
        for request in reversed(requests):
            heir.core.submit(request, Entry.BACK)

    def _new_rig(self) -> Rig:
        case = self.case
        rig = Rig(num_blocks=case.num_blocks, window=case.window, policy=case.policy, limits=case.limits)
        rig.worker = MortalWorker(BLOCK_SIZE)
        return rig

    def _request(self, number: int, deadly: int | None) -> Request:
        prompt = family(chr(ord("A") + number % 3), self.case.length)
        if deadly is not None:
            prompt[:2] = [POISON, deadly]
        return a_request(
            f"r{number}", prompt, self.case.max_tokens, arrival=float(number), tenant="ab"[number % 2],
            priority=number % 2,
        )  # fmt: skip


def run_to_end(world: World, turns: Sequence[tuple[int, bool]]) -> None:
    """Take turns as told, then one after another until nothing is left."""
    for number, is_running in turns:
        world.advance(number % len(world.rigs), is_running=is_running)
    for _ in range(2000):
        moved = [world.advance(number, is_running=True) for number in range(len(world.rigs))]
        if not any(moved):
            return
    raise AssertionError("some requests never end")


def check(world: World) -> None:
    """Everybody ended as it should, and every block is back."""
    for request, deadly in zip(world.requests, world.case.deadly, strict=True):
        prompt, answer = request.token_ids[: request.num_prompt_tokens], request.output_token_ids
        whole = continuation(prompt, world.case.max_tokens)
        if deadly is None:
            assert (request.status, answer) == (Status.LENGTH, whole), f"{request.request_id} is {request.status}"
        else:
            assert (request.status, request.finish_detail) == (Status.ERROR, "POISONED")
            assert not world.company[request], "it was not alone when it was given up"
            assert answer == whole[: len(answer)]
    num_poisons = sum(deadly is not None for deadly in world.case.deadly)
    assert world.num_deaths <= MAX_FAULTS * num_poisons
    for rig in world.rigs:
        assert (rig.core.num_requests, rig.kv.figures.num_held) == (0, 0)


LENGTH, MAX_TOKENS = 40, 8
CASES = st.builds(
    Case,
    num_workers=st.integers(1, 3),
    window=st.integers(1, 2),
    policy=st.sampled_from(Policy),
    limits=st.builds(Limits, max_num_batched_tokens=st.integers(3, 200), max_num_seqs=st.integers(1, 9)),
    num_blocks=st.integers(6, 60),
    # the last token of all is never computed; nobody decodes if it is to be the only one
    deadly=st.lists(st.sampled_from([None, None, None, 0, 5, LENGTH - 1, LENGTH + 3]), min_size=1, max_size=9),
    length=st.just(LENGTH),
    max_tokens=st.just(MAX_TOKENS),
)
TURNS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60)


@settings(max_examples=100, deadline=None)
@given(case=CASES, turns=TURNS)
def test_whatever_kills_its_worker_ends_alone_and_all_others_end_well(
    case: Case, turns: Sequence[tuple[int, bool]]
) -> None:
    world = World(case)
    run_to_end(world, turns)
    check(world)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("deadly", [5, LENGTH - 1, LENGTH + 3, 0], ids=["prompt", "last", "answer", "decode"])
def test_scenario_90_one_among_eight_neighbours_kills_three_times(deadly: int, num_workers: int) -> None:
    places = [None] * 4 + [deadly] + [None] * 4
    world = World(
        Case(num_workers=num_workers, window=2, policy=Policy.FCFS, limits=Limits(), num_blocks=100, deadly=places,
             length=LENGTH, max_tokens=MAX_TOKENS)
    )  # fmt: skip
    run_to_end(world, [])
    check(world)
    assert world.num_deaths == MAX_FAULTS
