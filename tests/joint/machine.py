"""Random worlds: anything may happen in any order; what must hold is checked after every call."""

import math
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_service.core.plan import Limits, StepStatus
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import Request, StopRules
from tests.fakes.paged_worker import continuation
from tests.joint import invariants
from tests.joint.site import MAX_MODEL_LEN, Settings, Site
from tests.joint.world import World
from tests.scheduler_service.core.rig import a_request, family

ROUNDS_PER_TOKEN = 4  # of all requests together: alone after a fault, computed again, one token a step

LIMITS = st.builds(
    Limits,
    max_num_batched_tokens=st.integers(2, 40),
    max_num_seqs=st.integers(1, 5),
    long_prefill_token_threshold=st.sampled_from([0, 0, 3, 10]),
    watermark=st.sampled_from([0.0, 0.1]),
    preempts_for_slots=st.booleans(),
    priority_aging_s=st.sampled_from([0.0, 5.0]),
)
SETTINGS = st.builds(
    Settings,
    num_blocks=st.integers(4, 16),
    num_sites=st.integers(1, 2),
    window=st.integers(1, 2),
    policy=st.sampled_from(Policy),
    caching=st.sampled_from([True, True, True, False]),
    record_every=st.integers(1, 6),
    limits=LIMITS,
)
SITES = st.integers(0, 1)
REQUESTS = st.integers(0, 9)  # of those that are open


@dataclass(frozen=True, slots=True)
class Kind:
    """What distinguishes a request besides its lengths."""

    letter: str = "A"  # of the tokens that others of its letter have, too
    min_tokens: int = 0
    stop_at: int | None = None  # the answer's token of this number is a stop token
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    bypass: bool = False


KINDS = (
    Kind(),
    Kind(letter="B"),
    Kind(priority=1),
    Kind(letter="B", priority=2, stop_at=2),
    Kind(tenant="t"),
    Kind(tenant="t", stop_at=2, min_tokens=3),
    Kind(tenant="t", letter="B", priority=1),
    Kind(cache_salt="s", stop_at=7),
    Kind(tenant="t", cache_salt="s"),
    Kind(bypass=True, priority=2),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants."""

    num_shared: int  # leading tokens that all have
    num_own: int
    max_tokens: int
    kind: Kind

    @property
    def prompt(self) -> list[int]:
        return family("S", self.num_shared) + family(self.kind.letter, self.num_own)

    @property
    def rules(self) -> StopRules:
        kind, stop = self.kind, frozenset[int]()
        if kind.stop_at is not None:
            stop = frozenset(continuation(self.prompt, kind.stop_at)[-1:])
        min_tokens = min(kind.min_tokens, self.max_tokens)
        return StopRules(max_tokens=self.max_tokens, min_tokens=min_tokens, stop_token_ids=stop)


ASKS = st.builds(Ask, st.integers(0, 14), st.integers(1, 10), st.integers(1, 16), st.sampled_from(KINDS))


class JointMachine(RuleBasedStateMachine):
    """Rules are what clients, workers, wires and processes do."""

    @initialize(settings=SETTINGS)
    def begin(self, settings: Settings) -> None:
        self.world = World(settings)
        self.names = invariants.Names()
        self.now_s = 0.0

    @rule(ask=ASKS)
    def submit(self, ask: Ask) -> None:
        number, kind = len(self.world.requests), ask.kind
        request = a_request(
            f"r{number}",
            ask.prompt,
            rules=ask.rules,
            priority=kind.priority,
            arrival=float(number),
            tenant=kind.tenant,
            cache_salt=kind.cache_salt,
            cache_bypass=kind.bypass,
        )
        if self.world.submit(request):
            self.names.add(request)

    @rule(asks=st.lists(ASKS, min_size=2, max_size=5), num_rounds=st.integers(0, 20))
    def be_busy(self, asks: list[Ask], num_rounds: int) -> None:
        """Several at once, and some time to run."""
        for ask in asks:
            self.submit(ask)
        for number in range(len(self.world.sites)):
            self.run(number, num_rounds)

    @precondition(lambda self: any(self.world.open_requests()))
    @rule(which=REQUESTS)
    def abort(self, which: int) -> None:
        self.world.abort(self._open(which).request_id)

    @precondition(lambda self: any(self.world.open_requests()))
    @rule(which=REQUESTS)
    def set_aside(self, which: int) -> None:
        self.world.set_aside(self._open(which))

    @rule()
    def set_all_ready(self) -> None:
        self.world.set_all_ready()

    @precondition(lambda self: any(request.num_output_tokens for request in self.world.open_requests()))
    @rule(which=REQUESTS, num_right=st.integers(0, 4), num_wrong=st.integers(0, 2))
    def offer_drafts(self, which: int, num_right: int, num_wrong: int) -> None:
        decoding = [request for request in self.world.open_requests() if request.num_output_tokens]
        request = decoding[which % len(decoding)]
        known = request.num_output_tokens
        right = continuation(request.token_ids[: request.num_prompt_tokens], known + num_right)[known:]
        self.world.offer_drafts(request, right + [0] * num_wrong)

    @rule(number=SITES, num_rounds=st.integers(1, 12))
    def run(self, number: int, num_rounds: int) -> None:
        site = self._site(number)
        for _ in range(num_rounds):
            is_full = not self.world.plan(site) or len(site.sent) == self.world.settings.window
            if is_full and site.sent:
                self.world.run_step(site)

    @rule(number=SITES)
    def plan(self, number: int) -> None:
        self.world.plan(self._site(number))

    @rule(number=SITES)
    def plan_without_kv(self, number: int) -> None:
        self.world.plan(self._site(number), is_kv_ready=False)

    @rule(number=SITES)
    def run_step(self, number: int) -> None:
        site = self._site(number)
        if site.sent:
            self.world.run_step(site)

    @rule(number=SITES, status=st.sampled_from([StepStatus.FAULT, StepStatus.VOID]))
    def fail_step(self, number: int, status: StepStatus) -> None:
        site = self._site(number)
        if site.sent:
            self.world.fail_step(site, status)

    @rule(number=SITES, is_applied=st.booleans(), is_asked_again=st.booleans())
    def lose_answer(self, number: int, is_applied: bool, is_asked_again: bool) -> None:
        self.world.lose_answer(self._site(number), is_applied=is_applied, is_asked_again=is_asked_again)

    @rule(number=SITES)
    def redial(self, number: int) -> None:
        self.world.reopen(self._site(number))

    @rule(is_restored=st.booleans())
    def restart_kv(self, is_restored: bool) -> None:
        self.world.restart_kv(is_restored=is_restored)

    @precondition(lambda self: self.world.requests)
    @rule(number=SITES, which=REQUESTS, ttl_s=st.integers(1, 3))
    def pin(self, number: int, which: int, ttl_s: int) -> None:
        requests = list(self.world.requests.values())
        self.world.pin(self._site(number), requests[which % len(requests)], expires_s=self.now_s + ttl_s)

    @rule()
    def wait_a_second(self) -> None:
        self.now_s += 1.0
        for site in self.world.sites:
            self.world.expire_pins(site, self.now_s)

    @rule(number=SITES, which=REQUESTS)
    def fence(self, number: int, which: int) -> None:
        site = self._site(number)
        if site.core.running:
            self.world.fence(site, f"reader{which}", site.core.running[which % len(site.core.running)])

    @precondition(lambda self: self.world.fences)
    @rule()
    def unfence(self) -> None:
        self.world.unfence(min(self.world.fences))

    @rule()
    def erase(self) -> None:
        self.world.erase("t")

    @rule(number=SITES, num_run=st.integers(0, 2))
    def lose_worker(self, number: int, num_run: int) -> None:
        self.world.lose_worker(self._site(number), num_run=num_run)

    @rule(number=SITES)
    def move_waiting(self, number: int) -> None:
        self.world.move_waiting(self._site(number))

    @rule(number=SITES)
    def reset_prefix_cache(self, number: int) -> None:
        manager = self.world.manager(self._site(number))
        is_idle = not manager.running and not len(manager.pins) and not manager.figures.num_fenced
        assert manager.reset_prefix_cache() == is_idle

    @invariant()
    def everything_holds(self) -> None:
        for site in self.world.sites:
            invariants.check_blocks(self.world, site)
            invariants.check_names(self.world, site, self.names)
            invariants.check_tables(self.world, site)
        invariants.check_requests(self.world)

    def teardown(self) -> None:
        """Nothing fails any more: everybody ends, with the right answer, and every block comes back."""
        if not hasattr(self, "world"):
            return
        self.world.set_all_ready()
        for reader_id in sorted(self.world.fences):
            self.world.unfence(reader_id)
        work = sum(r.num_prompt_tokens + r.rules.max_tokens for r in self.world.open_requests())
        self.world.run_to_end(ROUNDS_PER_TOKEN * work + 50)
        self.everything_holds()
        for request in self.world.requests.values():
            assert request.is_finished, f"{request.request_id} is {request.status} for ever"
            invariants.check_answer(request)
        for site in self.world.sites:
            manager = self.world.manager(site)
            assert not manager.requests
            manager.expire_pins(math.inf)
            assert manager.figures.num_free == manager.figures.num_blocks - 1

    def _site(self, number: int) -> Site:
        return self.world.sites[number % len(self.world.sites)]

    def _open(self, which: int) -> Request:
        requests = list(self.world.open_requests())
        return requests[which % len(requests)]


assert MAX_MODEL_LEN >= 14 + 10 + 16
