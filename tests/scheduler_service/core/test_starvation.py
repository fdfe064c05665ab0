"""Nobody starves, and tenants get their shares: random loads on the real cores, against the bounds of the policies.

The load is more than can be served, for ever: somebody comes in every step. One request is watched.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler_service.core.plan import Limits
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request
from tests.scheduler_service.core.rig import Rig

MAX_PROMPT, MAX_TOKENS = 60, 12
SLOW = settings(max_examples=60, deadline=None)


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run is made of."""

    num_blocks: int
    budget: int
    num_seqs: int
    window: int
    takes_slots: bool
    lengths: list[int]  # of prompts, over and over
    outputs: list[int]  # the most tokens, over and over

    def rig(self, policy: Policy, **limits: object) -> Rig:
        return Rig(
            num_blocks=self.num_blocks,
            policy=policy,
            window=self.window,
            limits=Limits(
                max_num_batched_tokens=self.budget,
                max_num_seqs=self.num_seqs,
                max_queue_len=1_000_000,
                preempts_for_slots=self.takes_slots,
                **limits,  # type: ignore[arg-type]
            ),
        )


worlds = st.builds(
    World,
    num_blocks=st.integers(7, 14),  # a request of the longest kind fits 6 blocks with 16 tokens
    budget=st.integers(8, 80),
    num_seqs=st.integers(1, 4),
    window=st.sampled_from([1, 2]),
    takes_slots=st.booleans(),
    lengths=st.lists(st.integers(1, MAX_PROMPT), min_size=1, max_size=7),
    outputs=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=5),
)


class Load:
    """Submits requests, and advances one step at a time."""

    def __init__(self, world: World, rig: Rig, *, num_shared: int = 0) -> None:
        self._world = world
        self._num_shared = num_shared  # tokens that all prompts begin with, as far as they are as long
        self._num_made = 0
        self.rig = rig

    def submit(self, **options: object) -> Request:
        number, world = self._num_made, self._world
        self._num_made += 1
        length = world.lengths[number % len(world.lengths)]
        prompt = [token if token < self._num_shared else 1000 * number + token for token in range(length)]
        return self.rig.submit(f"r{number}", prompt, world.outputs[number % len(world.outputs)], **options)

    def step(self) -> None:
        """Plan until the window is full, and take the oldest result."""
        while len(self.rig.sent) < self._world.window and self.rig.plan() is not None:
            pass
        if self.rig.sent:
            self.rig.result()


def work(request: Request) -> int:
    """The most steps that it can need when it goes first: one token a step."""
    return request.num_prompt_tokens + request.rules.max_tokens


@SLOW
@given(world=worlds, num_before=st.integers(0, 12))
def test_under_fcfs_a_request_waits_for_those_before_it_and_for_nobody_else(world: World, num_before: int) -> None:
    load = Load(world, world.rig(Policy.FCFS))
    before = [load.submit() for _ in range(num_before)]
    for _ in range(5):
        load.step()
    watched = load.submit()
    bound = 2 * sum(map(work, [*before, watched]))  # a plan may bring no step: a preemption, say
    for _ in range(bound):
        if watched.is_finished:
            return
        load.submit()
        load.step()
    raise AssertionError(f"{watched} has waited {bound} steps")


def steps_until_served(world: World, *, aging_s: float, limit: int) -> int | None:
    """Of a request of class 2 while one of class 0 comes in every step; a step is a second."""
    load = Load(world, world.rig(Policy.PRIORITY, priority_aging_s=aging_s))
    for _ in range(3):
        load.submit(priority=0, arrival=0.0)
    watched = load.submit(priority=2, arrival=0.0)
    for number in range(limit):
        if watched.is_finished:
            return number
        load.submit(priority=0, arrival=float(number))
        load.step()
    return None


@SLOW
@given(world=worlds, aging_s=st.integers(1, 4))
def test_under_priority_a_request_waits_for_those_who_come_before_it_has_aged(world: World, aging_s: int) -> None:
    """Those are the ones that come in `2 * aging_s` steps, and each can be computed twice at most: once more for it."""
    num_ahead = 3 + 2 * aging_s + world.num_seqs + 1
    limit = 4 * num_ahead * (MAX_PROMPT + MAX_TOKENS)
    assert steps_until_served(world, aging_s=aging_s, limit=limit) is not None


def test_without_aging_it_would_starve() -> None:
    """The load of the test above is one under which the bound matters."""
    world = World(num_blocks=8, budget=20, num_seqs=1, window=1, takes_slots=True, lengths=[40], outputs=[5])
    assert steps_until_served(world, aging_s=1e9, limit=3000) is None
    assert steps_until_served(world, aging_s=4, limit=3000) is not None


@SLOW
@given(world=worlds)
def test_under_fair_a_small_tenant_is_served_whatever_the_others_want(world: World) -> None:
    """Its account stays where it is, the other's rises with every token: it is next within the bound below."""
    load = Load(world, world.rig(Policy.FAIR))
    for _ in range(20):
        load.submit(tenant="a")
    for _ in range(5):
        load.step()
    watched = load.submit(tenant="b")
    bound = 2 * (MAX_PROMPT + world.num_seqs * MAX_TOKENS + (world.num_seqs + 2) * (MAX_PROMPT + MAX_TOKENS))
    for _ in range(bound):
        if watched.is_finished:
            return
        load.submit(tenant="a")
        load.step()
    raise AssertionError(f"{watched} has waited {bound} steps")


@SLOW
@given(
    world=worlds,
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=3),
    shared=st.integers(0, 40),
)
def test_tenants_that_always_wait_are_computed_for_by_their_weights(
    world: World, weights: list[float], shared: int
) -> None:
    """Tokens by weight differ by at most (longest prompt + outputs of those that run at once) / the one's weight, and
    by the part of a prompt that is let in and not computed yet / the other's."""
    shares = {f"t{number}": weight for number, weight in enumerate(weights)}
    load = Load(world, world.rig(Policy.FAIR, tenant_weights=shares), num_shared=shared)
    computed = dict.fromkeys(shares, 0)
    reached: dict[Request, int] = {}
    requests: dict[str, list[Request]] = {tenant: [] for tenant in shares}
    for _ in range(60):
        for tenant, mine in requests.items():
            while sum(request.was_admitted is False for request in mine) < 4:
                mine.append(load.submit(tenant=tenant))
        load.step()
        for tenant, mine in requests.items():
            for request in mine:
                before = max(reached.get(request, 0), request.num_cached_tokens)
                reached[request] = max(before, request.num_computed_tokens)
                computed[tenant] += reached[request] - before
        for one, weight in shares.items():
            for other, other_weight in shares.items():
                ahead = computed[one] / weight - computed[other] / other_weight
                bound = (MAX_PROMPT + world.num_seqs * MAX_TOKENS) / weight + MAX_PROMPT / other_weight
                assert ahead <= bound, f"{one} has {computed[one]}, {other} {computed[other]} of {shares}"
