"""Random lives of one pool whose journal is written piece by piece, late, twice or never, until the service dies.

The real cores play: a scheduler with its grant log, pools that restore, and a worker that knows what it has written.
"""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvcache_service import metadata_record as layout
from kvcache_service.core.restore import PoolRecord, RestoreOutcome
from kvcache_service.metadata_journal import Author, Journal
from scheduler_service.core.plan import Limits
from tests.fakes.scripted_redis import ScriptedRedis
from tests.joint import invariants
from tests.joint.site import SCHEDULER_INCARNATION, Settings, Site
from tests.joint.world import World
from tests.scheduler_service.core.rig import a_request, family

NEVER = 10**9
AUTHOR = Author("kvcache", 7, b"check", lambda now_s: now_s)
LETTERS = st.text("ABCD", min_size=1, max_size=3)
KEYS = layout.pool_keys("kvcache", "w0")


class JournalMachine(RuleBasedStateMachine):
    """Whatever is found after a restart holds what its name says; nothing else matters to whoever gets it."""

    @initialize(num_blocks=st.integers(5, 14), budget=st.integers(4, 30))
    def begin(self, num_blocks: int, budget: int) -> None:
        limits = Limits(max_num_batched_tokens=budget, max_num_seqs=4)
        self.world = World(Settings(num_blocks=num_blocks, record_every=NEVER, limits=limits))
        self.names = invariants.Names()
        self.redis = ScriptedRedis()
        self.outcomes: list[RestoreOutcome] = []
        self._pool_opened()

    @rule(shared=st.integers(0, 14), own=st.integers(1, 10), letter=st.sampled_from("AB"), tokens=st.integers(1, 9))
    def submit(self, shared: int, own: int, letter: str, tokens: int) -> None:
        prompt = family("S", shared) + family(letter, own)
        request = a_request(f"r{len(self.world.requests)}", prompt, tokens, arrival=float(len(self.world.requests)))
        if self.world.submit(request):
            self.names.add(request)

    @rule(letters=LETTERS, num_writes=st.integers(0, 9))
    def serve(self, letters: str, num_writes: int) -> None:
        """Prompts that need most of the pool, and Redis hears of some of it."""
        for letter in letters:
            self.submit(shared=4, own=8, letter=letter, tokens=2)
        self.run(5 * len(letters))
        self.write(num_writes)

    @rule(known=LETTERS, unknown=LETTERS, num_late_writes=st.integers(0, 4))
    def die_behind(self, known: str, unknown: str, num_late_writes: int) -> None:
        """Redis knows everything; then blocks are overwritten, of which it hears little or nothing, and it is over."""
        self.serve(known, 0)
        self.write_all()
        self.serve(unknown, num_late_writes)
        self.die_and_come_back()

    @rule(num_rounds=st.integers(1, 12))
    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            is_planned = self.world.plan(self.site)
            self._note()
            if self.site.sent and (not is_planned or len(self.site.sent) == 2):
                self.world.run_step(self.site)

    @rule()
    def plan(self) -> None:
        self.world.plan(self.site)
        self._note()

    @rule(is_applied=st.booleans())
    def lose_answer(self, is_applied: bool) -> None:
        """A plan that the service may have applied, and that its scheduler has abandoned."""
        session = self.site.session
        self.world.lose_answer(self.site, is_applied=is_applied, is_asked_again=False)
        if self.site.session == session:
            self._note()
        else:
            self._pool_opened()

    @rule()
    def redial(self) -> None:
        self.world.reopen(self.site)
        self._pool_opened()

    @rule(number=st.integers(0, 9), which=st.integers(0, 9))
    def pin(self, number: int, which: int) -> None:
        requests = list(self.world.requests.values())
        if requests:
            self.world.pin(self.site, requests[which % len(requests)], expires_s=1000.0 + number)
            self._note()

    @rule(num_writes=st.integers(1, 6))
    def write(self, num_writes: int) -> None:
        for _ in range(num_writes):
            if not self.journal.take():
                return
            assert self.journal.in_hand is not None
            self.journal.done(self.redis.run(self.journal.in_hand), 0.0)

    @rule()
    def write_all(self) -> None:
        self.journal.note((), 0.0)  # a loss is noticed by the next write
        while not self.journal.is_clean:
            self.write(1)
        found = self.record()
        assert found is not None
        assert found.position == self.world.pools.get(self.site.key).position

    @rule(is_applied=st.booleans())
    def lose_write(self, is_applied: bool) -> None:
        """Redis does not answer; whether it did what it was asked to do, nobody knows."""
        if self.journal.take():
            assert self.journal.in_hand is not None
            if is_applied:
                self.redis.run(self.journal.in_hand)
            self.journal.start_over(0.0)

    @rule()
    def change_while_writing(self) -> None:
        """A plan is applied while a write is on its way."""
        if self.journal.take():
            assert self.journal.in_hand is not None
            answer = self.redis.run(self.journal.in_hand)
            self.plan()
            self.journal.done(answer, 0.0)

    @rule()
    def flush(self) -> None:
        self.redis.flush()

    @rule()
    def die_and_come_back(self) -> None:
        self.site.record = self.record()
        self.world.restart_kv(is_restored=True)
        self.outcomes.append(self.world.pools.get(self.site.key).restored.outcome)
        self._pool_opened()

    @invariant()
    def names_are_true(self) -> None:
        invariants.check_blocks(self.world, self.site)
        invariants.check_names(self.world, self.site, self.names)
        invariants.check_tables(self.world, self.site)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run_to_end(20_000)
        for request in self.world.requests.values():
            invariants.check_answer(request)

    @property
    def site(self) -> Site:
        return self.world.sites[0]

    def record(self) -> PoolRecord | None:
        """What Redis holds, read as a restarted service reads it."""
        hashes = self.redis.hashes
        found = layout.recorded_pool(hashes.get(KEYS.meta, {}))
        if found is not None:
            blocks = hashes.get(KEYS.blocks, {}).items()
            found.blocks = [layout.recorded_block(key, value) for key, value in blocks]
            pins = hashes.get(KEYS.pins, {}).items()
            found.pins = [layout.recorded_pin(field, value, unix_s=0.0, now_s=0.0) for field, value in pins]
            assert found.scheduler_incarnation == SCHEDULER_INCARNATION
        return found

    def _pool_opened(self) -> None:
        pool = self.world.pools.get(self.site.key)
        pool.manager.take_events()
        self.journal = Journal(pool, AUTHOR, now_s=0.0)

    def _note(self) -> None:
        self.journal.note(self.world.pools.get(self.site.key).manager.take_events(), 0.0)
