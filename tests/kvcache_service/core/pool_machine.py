"""A scheduler that does anything it may, in any order, and a worker that runs plans in order and remembers every write.

Knows what the pool is supposed to know, and nothing of how it does it. Blocks hold two tokens, and there are two
different tokens, so that prefixes are shared all the time.
"""

from array import array
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcache_service.core.block_hash import Fingerprint, HashChain, root_hash
from kvcache_service.core.plan import (
    AdmissionStatus,
    Admits,
    Commits,
    Declaration,
    DeclaredTable,
    Frees,
    Grants,
    Grows,
    Plan,
)
from kvcache_service.core.pools import PoolKey, Pools

B = 2
NUM_OUTPUTS = 8
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
OUTPUTS = st.lists(st.integers(0, 1), min_size=NUM_OUTPUTS, max_size=NUM_OUTPUTS)
Prefix = tuple[int, ...]


@dataclass(slots=True)
class Sequence:
    """A request as its scheduler sees it; `tokens` are all that it will ever have."""

    handle: int
    tokens: list[int]
    num_revealed: int  # ids that are known
    num_committed: int = 0  # ids that the pool was told
    epoch: int = 0
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_acked: int = 0


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan that was sent: how far it takes each request of which epoch, and what it writes where."""

    step: int
    reaches: dict[int, tuple[int, int]]  # handle -> (epoch, position)
    writes: list[tuple[int, int, Prefix]]  # block, slot, everything up to the token in it


class PoolMachine(RuleBasedStateMachine):
    """Rules are what schedulers do; invariants are what pools promise."""

    @initialize(num_blocks=st.integers(4, 12), gate=st.booleans())
    def open(self, num_blocks: int, gate: bool) -> None:
        self.pools, self.fingerprint = Pools(), Fingerprint(block_size=B)
        self.num_blocks, self.session, self.step, self.num_handles = num_blocks, 0, 0, 0
        self.sequences: dict[int, Sequence] = {}
        self.flights: list[Flight] = []
        self.content: dict[int, list[Prefix | None]] = {block_id: [None] * B for block_id in range(num_blocks)}
        self.written: dict[int, list[Prefix | None]] = {block_id: [None] * B for block_id in range(num_blocks)}
        self.meaning: dict[bytes, Prefix] = {}
        self.reopen()
        self.manager._full_sequence_gate = gate

    @rule()
    def reopen(self) -> None:
        """A new session: plans in flight still run, but their acknowledgements come as commits."""
        self.session, self.step = self.session + 1, 0
        self.flights = [Flight(0, flight.reaches, flight.writes) for flight in self.flights]
        running = [sequence for sequence in self.sequences.values() if sequence.table]
        self.sequences = {sequence.handle: sequence for sequence in running}
        tables = [
            DeclaredTable(
                handle=sequence.handle,
                epoch=sequence.epoch,
                token_ids=sequence.tokens[: sequence.num_revealed],
                block_ids=sequence.table,
                num_acked_tokens=sequence.num_acked,
                num_computed_tokens=sequence.num_computed,
            )
            for sequence in running
        ]
        for sequence in running:
            sequence.num_committed = sequence.num_revealed
        key = PoolKey(pool_id="w", incarnation=1, session=self.session)
        self.pool = self.pools.open(key, self.num_blocks, fingerprint=self.fingerprint, tables=tables)
        self.manager = self.pool.manager

    @rule(num_results=st.integers(1, 2))
    def hear_from_the_worker(self, num_results: int) -> None:
        """Results come in order and reveal the id behind the last written position."""
        heard, self.flights = self.flights[:num_results], self.flights[num_results:]
        for flight in heard:
            for block_id, slot, prefix in flight.writes:
                self.written[block_id][slot] = prefix
            for handle, (epoch, position) in flight.reaches.items():
                sequence = self.sequences.get(handle)
                if sequence is not None and sequence.epoch == epoch:
                    sequence.num_acked = max(sequence.num_acked, position)
                    sequence.num_revealed = max(sequence.num_revealed, min(position + 1, len(sequence.tokens)))

    @rule(data=st.data(), budget=st.integers(0, 12), new=st.lists(st.tuples(PROMPTS, OUTPUTS), max_size=2))
    def plan(self, data: st.DataObject, budget: int, new: list[tuple[list[int], list[int]]]) -> None:
        """Anything that the state allows."""
        running = [sequence for sequence in self.sequences.values() if sequence.table]
        freed = [sequence for sequence in running if data.draw(st.integers(0, 5)) == 0]
        commits = [sequence for sequence in self.sequences.values() if data.draw(st.booleans()) or not sequence.table]
        told, frees = self._commits(commits), self._frees(freed)
        for sequence in freed:
            self._drop(sequence)
        forgotten = [s.handle for s in self.sequences.values() if not s.table and data.draw(st.integers(0, 4)) == 0]
        for handle in forgotten:
            del self.sequences[handle]
        declares = [self._declare(prompt, outputs) for prompt, outputs in new]
        growing = [s for s in self.sequences.values() if s.table and s.num_computed < len(s.tokens) - 1]
        growing = data.draw(st.permutations(growing)) if growing else []
        wants = [data.draw(st.integers(1, len(s.tokens) - 1 - s.num_computed)) for s in growing]
        victims = data.draw(st.permutations([s.handle for s in growing])) if data.draw(st.booleans()) else []
        waiting = [s for s in self.sequences.values() if not s.table]
        waiting = data.draw(st.permutations(waiting)) if waiting else []
        self._apply(
            Plan(
                step=self.step + 1,
                acked_step=max(0, self.flights[0].step - 1) if self.flights else self.step,
                commits=told,
                frees=frees,
                forgotten_handles=forgotten,
                declares=declares,
                token_budget=budget,
                max_admissions=data.draw(st.integers(0, 3)),
                long_prefill_token_threshold=data.draw(st.integers(0, 4)),
                grows=Grows(handles=[s.handle for s in growing], wants=wants, victims=victims),
                admits=Admits(
                    handles=[s.handle for s in waiting],
                    num_known_tokens=[s.num_revealed for s in waiting],
                    num_watermark_blocks=[data.draw(st.integers(0, 1)) for _ in waiting],
                ),
            )
        )

    @precondition(lambda self: bool(self.flights) and self.flights[0].step > 0)
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        """A step and those behind it never ran: their requests are preempted, their blocks hold nothing."""
        first = data.draw(st.sampled_from(self.flights))
        lost = [flight for flight in self.flights if flight.step >= first.step]
        self.flights = [flight for flight in self.flights if flight.step < first.step]
        handles = {handle for flight in lost for handle in flight.reaches}
        hit = [s for s in self.sequences.values() if s.handle in handles and s.table]
        for block_id, slot, prefix in [write for flight in lost for write in flight.writes]:
            if self.content[block_id][slot] == prefix:
                self.content[block_id][slot] = None
        frees = self._frees(hit)
        for sequence in hit:
            self._drop(sequence)
        acked = self.flights[0].step - 1 if self.flights else first.step - 1
        self._apply(Plan(step=self.step + 1, acked_step=max(0, acked), failed_step=first.step, frees=frees))

    @rule()
    def reset(self) -> None:
        is_idle = not any(sequence.table for sequence in self.sequences.values())
        assert self.manager.reset_prefix_cache() == is_idle

    def _apply(self, plan: Plan) -> None:
        """Plan, send it twice, and write what the worker will write."""
        digest = bytes([plan.step % 256])
        grants = self.pool.plan_step(plan, digest)
        assert self.pool.plan_step(plan, digest) is grants
        self.step = plan.step
        assert sum(grants.grow_num_tokens) + sum(a.num_granted_tokens for a in grants.admissions) <= plan.token_budget
        assert sum(a.status is AdmissionStatus.ADMITTED for a in grants.admissions) <= plan.max_admissions
        flight = Flight(plan.step, {}, [])
        self._settle_grows(plan, grants, flight)
        self._settle_admissions(grants, flight)
        self.flights.append(flight)
        self._check_hits(grants)

    def _settle_grows(self, plan: Plan, grants: Grants, flight: Flight) -> None:
        for handle in grants.preempted_handles:
            self._drop(self.sequences[handle])
        new = iter(grants.grow_new_block_ids)
        granted = zip(grants.grow_num_tokens, grants.grow_num_new_blocks, strict=True)
        for handle, want, (num_tokens, num_new) in zip(plan.grows.handles, plan.grows.wants, granted, strict=True):
            assert num_tokens <= want
            if num_tokens:
                sequence = self.sequences[handle]
                sequence.table += [next(new) for _ in range(num_new)]
                self._advance(sequence, num_tokens, flight)
        assert next(new, None) is None

    def _settle_admissions(self, grants: Grants, flight: Flight) -> None:
        for admission in grants.admissions:
            if admission.status is AdmissionStatus.ADMITTED:
                sequence = self.sequences[admission.handle]
                sequence.table = list(admission.block_ids)
                sequence.num_computed = admission.num_cached_tokens
                self._advance(sequence, admission.num_granted_tokens, flight)

    def _advance(self, sequence: Sequence, num_tokens: int, flight: Flight) -> None:
        start, sequence.num_computed = sequence.num_computed, sequence.num_computed + num_tokens
        assert -(-sequence.num_computed // B) == len(sequence.table)
        for position in range(start, sequence.num_computed):
            block_id, slot, prefix = sequence.table[position // B], position % B, tuple(sequence.tokens[: position + 1])
            self.content[block_id][slot] = prefix
            flight.writes.append((block_id, slot, prefix))
        flight.reaches[sequence.handle] = (sequence.epoch, sequence.num_computed)

    def _check_hits(self, grants: Grants) -> None:
        """Every hit position holds what its sequence says, by a plan up to this one."""
        for admission in grants.admissions:
            for position in range(min(admission.num_cached_tokens, len(admission.block_ids) * B)):
                expected = tuple(self.sequences[admission.handle].tokens[: position + 1])
                assert self.content[admission.block_ids[position // B]][position % B] == expected

    def _declare(self, prompt: list[int], outputs: list[int]) -> Declaration:
        sequence = Sequence(self.num_handles, prompt + outputs, len(prompt), len(prompt))
        self.sequences[sequence.handle] = sequence
        self.num_handles += 1
        keys = HashChain(root_hash(self.fingerprint), B).keys(array("I", sequence.tokens))
        for index, key in enumerate(keys, 1):
            prefix = tuple(sequence.tokens[: index * B])
            assert self.meaning.setdefault(key, prefix) == prefix
        return Declaration(handle=sequence.handle, token_ids=prompt)

    def _commits(self, sequences: list[Sequence]) -> Commits:
        """Every id that is known and not yet told."""
        new = [s.tokens[s.num_committed : s.num_revealed] for s in sequences]
        for sequence in sequences:
            sequence.num_committed = sequence.num_revealed
        return Commits(
            handles=[s.handle for s in sequences],
            num_acked_tokens=[s.num_acked for s in sequences],
            num_new_tokens=[len(token_ids) for token_ids in new],
            new_token_ids=[token_id for token_ids in new for token_id in token_ids],
        )

    def _frees(self, sequences: list[Sequence]) -> Frees:
        """Released twice each, and every earlier epoch once more: neither may do anything."""
        again = [s for s in self.sequences.values() if s.epoch > 0]
        handles = [s.handle for s in (*sequences, *sequences, *again)]
        epochs = [*(s.epoch for s in (*sequences, *sequences)), *(s.epoch - 1 for s in again)]
        return Frees(handles=handles, epochs=epochs)

    def _drop(self, sequence: Sequence) -> None:
        sequence.epoch += 1
        sequence.table = []
        sequence.num_computed = sequence.num_acked = 0

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        pool, free = self.manager.pool, list(self.manager.pool.free_queue)
        held = [block_id for sequence in self.sequences.values() for block_id in sequence.table]
        assert sorted({*free, *held}) == list(range(1, self.num_blocks))
        assert len(free) + len(set(held)) == self.num_blocks - 1 == pool.num_free + self.manager.figures.num_held
        assert [pool.ref_cnt(block_id) for block_id in range(self.num_blocks)] == [
            held.count(block_id) for block_id in range(self.num_blocks)
        ]
        assert pool.num_cached == sum(pool.key(block_id) is not None for block_id in free)

    @invariant()
    def tables_are_what_the_scheduler_thinks(self) -> None:
        tables = {handle: self.manager.block_table(handle) for handle in self.manager.requests}
        assert tables == {sequence.handle: sequence.table for sequence in self.sequences.values()}
        assert {handle for handle, table in tables.items() if table} == self.manager.running.keys()

    @invariant()
    def a_key_names_one_prefix_and_its_blocks_hold_it(self) -> None:
        cache = self.manager.pool.cache
        for key in cache:
            prefix = self.meaning[key]
            held = [prefix[:position] for position in range(len(prefix) - B + 1, len(prefix) + 1)]
            for block_id in cache.copies(key):
                assert self.manager.pool.key(block_id) == key
                assert self.content[block_id] == held
                assert not self.manager.pool.is_committed(block_id) or self.written[block_id] == held

    @invariant()
    def the_cached_set_is_closed_under_prefixes(self) -> None:
        cached = {self.meaning[key] for key in self.manager.pool.cache}
        assert all(len(prefix) == B or prefix[:-B] in cached for prefix in cached)
        acked = {self.meaning[key] for key in self.manager.pool.cache if self.manager.pool.is_key_committed(key)}
        assert all(len(prefix) == B or prefix[:-B] in acked for prefix in acked)
