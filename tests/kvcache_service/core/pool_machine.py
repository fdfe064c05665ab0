"""A scheduler that does anything it may, in any order, operators who pin, erase and reset, and readers that fence.

Every op is done twice, and the second time may change nothing. A failing run is printed as the calls to make again.
"""

from itertools import takewhile

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from kvcache_service.core.errors import PinQuotaExceeded
from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.pins import MAX_PINNED_SHARE_OF_ALL, Pin, PinName
from kvcache_service.core.plan import (
    AdmissionStatus,
    Admits,
    Commits,
    Declaration,
    DeclaredTable,
    Erased,
    Frees,
    Grants,
    Grows,
    Plan,
)
from kvcache_service.core.pools import PoolKey, Pools
from kvcache_service.core.request import Identity
from tests.kvcache_service.core.pool_model import (
    EXTRAS,
    MAX_PROMPT,
    NAMESPACES,
    NUM_OUTPUTS,
    B,
    Choices,
    Flight,
    ModelRequest,
    Reach,
    Write,
)
from tests.kvcache_service.core.pool_promises import PoolPromises


def _choices(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size).map(lambda choices: choices.rstrip(b"\0"))


FEW, MANY = _choices(16), _choices(80)
SHARES = (1.0, 0.5, 0.25)


class PoolMachine(PoolPromises):
    """Rules are what is done to a pool; `PoolPromises` are what it keeps."""

    @initialize(num_blocks=st.integers(4, 12), gate=st.booleans(), share=st.sampled_from(SHARES))
    def open(self, num_blocks: int, gate: bool, share: float) -> None:
        self.begin(num_blocks)
        self.pools, self.share = Pools(), share
        self.session, self.step, self.num_handles, self.now_s = 0, 0, 0, 0
        self.reopen()
        self.manager.has_full_sequence_gate = gate
        self.manager.pins.max_pinned_share = share

    @rule()
    def reopen(self) -> None:
        """A new session: plans in flight still run, but their acknowledgements come as commits."""
        self.session, self.step = self.session + 1, 0
        self.worker.flights = [Flight(0, flight.reaches, flight.writes) for flight in self.worker.flights]
        self.requests = {request.handle: request for request in self.running}
        tables = [
            DeclaredTable(
                handle=request.handle,
                epoch=request.epoch,
                token_ids=request.tokens[: request.num_revealed],
                block_ids=request.table,
                num_acked_tokens=request.num_acked,
                num_computed_tokens=request.num_computed,
                identity=Identity(extras=request.extras),
            )
            for request in self.running
        ]
        for request in self.running:
            request.num_committed = request.num_revealed
        key = PoolKey(pool_id="w", incarnation=1, session=self.session)
        self.pool = self.pools.open(key, self.num_blocks, fingerprint=self.fingerprint, tables=tables)
        self.changes_nothing(lambda: self.pools.open(key, self.num_blocks, fingerprint=self.fingerprint, tables=tables))

    @rule(several=st.lists(MANY, min_size=1, max_size=4))
    def plan(self, several: list[bytes]) -> None:
        """What a scheduler does most: it hears from the worker, and plans anything that the state allows."""
        for choices in several:
            choose = Choices(choices)
            self._hear_from_the_worker(choose.below(3))
            self._plan(choose)

    @rule(choices=FEW)
    def start_alone(self, choices: bytes) -> None:
        """Everybody ends, and a prompt comes that may take every block."""
        choose, ending = Choices(choices), self.running
        frees = self._frees(ending)
        for request in ending:
            request.drop()
        declared = self._declare(choose, 1 + choose.below(B * (self.num_blocks - 1)))
        admits = Admits(handles=[declared.handle], num_known_tokens=[len(declared.token_ids)], num_watermark_blocks=[0])
        step, acked = self.step + 1, self._acked_step(self.step)
        ops = {"frees": frees, "declares": [declared], "admits": admits}
        self._apply(Plan(step=step, acked_step=acked, token_budget=100, max_admissions=1, **ops))  # type: ignore[arg-type]

    @precondition(lambda self: bool(self.worker.flights) and self.worker.flights[0].step > 0)
    @rule(choices=FEW)
    def fault(self, choices: bytes) -> None:
        """A step and those behind it never ran: their requests are preempted, their blocks hold nothing."""
        first = Choices(choices).one_of(self.worker.flights).step
        lost = self.worker.fail(first)
        hit = [request for request in self.running if request.handle in lost]
        frees = self._frees(hit)
        for request in hit:
            request.drop()
        acked = self._acked_step(first - 1)
        self._apply(Plan(step=self.step + 1, acked_step=acked, failed_step=first, frees=frees))

    @rule(several=st.lists(FEW, min_size=1, max_size=3))
    def pin(self, several: list[bytes]) -> None:
        """Prefixes of prompts that run, wait or never came, as long as shares allow."""
        for choices in several:
            self._pin(Choices(choices))

    @rule(choices=FEW)
    def unpin(self, choices: bytes) -> None:
        choose = Choices(choices)
        name = PinName(choose.one_of((None, *NAMESPACES)), choose.one_of("ab"))
        assert self.manager.unpin(name) == (self.pins.pop(name, None) is not None)
        self.changes_nothing(lambda: self.manager.unpin(name))

    @rule(seconds=st.integers(0, 2))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        over = [name for name, pin in self.pins.items() if pin.expires_s <= self.now_s]
        assert self.manager.expire_pins(self.now_s) == len(over)
        for name in over:
            del self.pins[name]
        self.changes_nothing(lambda: self.manager.expire_pins(self.now_s))

    @rule(namespace=st.sampled_from(NAMESPACES))
    def erase(self, namespace: bytes) -> None:
        """Nothing of it may be hit from now on; what runs goes on."""
        pool = self.manager.pool
        num_blocks = sum(pool.namespace(b) == namespace and pool.is_committed(b) for b in range(self.num_blocks))
        pins = [name for name in self.pins if name.namespace == namespace]
        erased = self.manager.erase_namespace(namespace)
        assert (erased.num_blocks, erased.num_pins) == (num_blocks, len(pins))
        self.num_erasures[namespace] += 1
        for name in pins:
            del self.pins[name]
        self.changes_nothing(lambda: self.manager.erase_namespace(namespace))
        assert self.manager.erase_namespace(namespace) == Erased()

    @rule(reader_id=st.sampled_from("xy"), choices=FEW)
    def fence(self, reader_id: str, choices: bytes) -> None:
        """Somebody reads blocks that hold something."""
        pool = self.manager.pool
        there = [b for b in range(1, self.num_blocks) if pool.ref_cnt(b) or pool.key(b) is not None]
        block_ids = Choices(choices).some_of(there, one_in=3)
        self.manager.fence(reader_id, block_ids)
        self.fences.setdefault(reader_id, set()).update(block_ids)
        self.changes_nothing(lambda: self.manager.fence(reader_id, block_ids))

    @rule(reader_id=st.sampled_from("xy"))
    def unfence(self, reader_id: str) -> None:
        self.manager.unfence(reader_id)
        self.fences.pop(reader_id, None)
        self.changes_nothing(lambda: self.manager.unfence(reader_id))

    @rule()
    def reset(self) -> None:
        is_idle = not self.held and not self.fenced
        assert self.manager.reset_prefix_cache() == is_idle
        if not is_idle:
            self.changes_nothing(self.manager.reset_prefix_cache)

    def _hear_from_the_worker(self, num_results: int) -> None:
        """Results come in order and reveal the id behind the last written position."""
        for flight in self.worker.run(num_results):
            for handle, reach in flight.reaches.items():
                request = self.requests.get(handle)
                if request is not None and request.epoch == reach.epoch:
                    request.num_acked = max(request.num_acked, reach.position)
                    request.num_revealed = max(request.num_revealed, min(reach.position + 1, len(request.tokens)))

    def _plan(self, choose: Choices) -> None:
        freed = choose.some_of(self.running, one_in=choose.one_of((12, 12, 3, 1)))
        told = [request for request in self.requests.values() if choose.one_in(2) or not request.table]
        commits, frees = self._commits(told), self._frees(freed)
        for request in freed:
            request.drop()
        forgotten = [r.handle for r in choose.some_of([r for r in self.requests.values() if not r.table], one_in=5)]
        for handle in forgotten:
            del self.requests[handle]
        declares = [self._declare(choose, 1 + choose.below(MAX_PROMPT)) for _ in range(choose.below(3))]
        growing = choose.shuffled(r for r in self.running if r.num_computed < len(r.tokens) - 1)
        wants = [1 + choose.below(len(r.tokens) - 1 - r.num_computed) for r in growing]
        victims = choose.shuffled(r.handle for r in growing) if choose.one_in(2) else []
        waiting = choose.shuffled(r for r in self.requests.values() if not r.table)
        admits = Admits(
            handles=[r.handle for r in waiting],
            num_known_tokens=[r.num_revealed for r in waiting],
            num_watermark_blocks=[int(choose.one_in(4)) for _ in waiting],
        )
        self._apply(
            Plan(
                step=self.step + 1,
                acked_step=self._acked_step(self.step),
                commits=commits,
                frees=frees,
                forgotten_handles=forgotten,
                declares=declares,
                token_budget=12 - choose.below(13),
                max_admissions=3 - choose.below(4),
                long_prefill_token_threshold=choose.below(5),
                whole_prompts_only=choose.one_in(5),
                grows=Grows(handles=[r.handle for r in growing], wants=wants, victims=victims),
                admits=admits,
            )
        )

    def _acked_step(self, last: int) -> int:
        return max(0, self.worker.flights[0].step - 1 if self.worker.flights else last)

    def _pin(self, choose: Choices) -> None:
        extras, tokens = self._prompt_to_pin(choose)
        name = PinName(extras.namespace, choose.one_of("ab"))
        keys = self.keys_of(tokens, extras)
        block_ids = self._committed(keys)
        expires_s = self.now_s + 1.0 + choose.below(8)
        if block_ids and not self._may_pin(name, block_ids):
            self.changes_nothing(lambda: self._is_refused(name, keys, expires_s))
            return
        assert self.manager.pin(name, keys, expires_s=expires_s) == len(block_ids)
        self.pins.pop(name, None)
        if block_ids:
            self.pins[name] = Pin(tuple(block_ids), expires_s)
        self.changes_nothing(lambda: self.manager.pin(name, keys, expires_s=expires_s))

    def _prompt_to_pin(self, choose: Choices) -> tuple[Extras, list[int]]:
        """A prompt that runs or waits, or any."""
        if self.running and not choose.one_in(8):
            request = choose.one_of(self.running)
            return request.extras, request.tokens[: 2 * B + choose.below(len(request.tokens))]
        return choose.one_of(EXTRAS), [choose.below(2) for _ in range(B + choose.below(MAX_PROMPT))]

    def _committed(self, keys: list[bytes]) -> list[int]:
        """The first copy of each leading key that is committed."""
        copies = [self.manager.pool.committed_copies(key) for key in keys]
        return [found[0] for found in takewhile(bool, copies)]

    def _may_pin(self, name: PinName, block_ids: list[int]) -> bool:
        others = {other: set(pin.block_ids) for other, pin in self.pins.items() if other != name}
        of_all = set(block_ids).union(*others.values())
        of_tenant = set(block_ids).union(*(kept for other, kept in others.items() if other.namespace == name.namespace))
        usable = self.num_blocks - 1
        return len(of_tenant) <= int(self.share * usable) and len(of_all) <= int(MAX_PINNED_SHARE_OF_ALL * usable)

    def _is_refused(self, name: PinName, keys: list[bytes], expires_s: float) -> None:
        try:
            self.manager.pin(name, keys, expires_s=expires_s)
        except PinQuotaExceeded:
            return
        raise AssertionError(f"pin {name} was not refused")

    def _apply(self, plan: Plan) -> None:
        """Plan, send it twice, and write what the worker will write."""
        alone = self._must_get_on(plan)
        num_given_way = self.manager.pins.num_given_way
        num_running = len(self.running)
        digest = bytes([plan.step % 256])
        grants = self.pool.plan_step(plan, digest)
        self.hear()
        self.changes_nothing(lambda: self.pool.plan_step(plan, digest))
        assert self.pool.plan_step(plan, digest) is grants
        self.step = plan.step
        assert sum(grants.grow_num_tokens) + sum(a.num_granted_tokens for a in grants.admissions) <= plan.token_budget
        assert sum(a.status is AdmissionStatus.ADMITTED for a in grants.admissions) <= plan.max_admissions
        if self.manager.pins.num_given_way > num_given_way:
            assert num_running - len(grants.preempted_handles) <= 1
        if alone is not None and not self.fenced:  # what gave way may still be read
            assert alone in self._granted(plan, grants)
        flight = Flight(plan.step, {}, [])
        self._settle_grows(plan, grants, flight)
        self._settle_admissions(grants, flight)
        self._check_hits(grants)

    def _must_get_on(self, plan: Plan) -> int | None:
        """The request that nothing can keep from getting something: alone in the pool, which is large enough."""
        if not plan.token_budget:
            return None
        if len(self.running) == 1 and plan.grows.handles:
            request, want = self.running[0], min(plan.grows.wants[0], plan.token_budget)
            num_tokens, has_room = request.num_computed + want, True
        elif not self.running and plan.admits.handles and plan.max_admissions:
            request, num_tokens = self.requests[plan.admits.handles[0]], plan.admits.num_known_tokens[0]
            has_room = plan.admits.num_watermark_blocks[0] == 0 and not plan.whole_prompts_only
        else:
            return None
        return request.handle if has_room and -(-num_tokens // B) < self.num_blocks else None

    def _granted(self, plan: Plan, grants: Grants) -> list[int]:
        grown = [handle for handle, num in zip(plan.grows.handles, grants.grow_num_tokens, strict=True) if num]
        return grown + [a.handle for a in grants.admissions if a.status is AdmissionStatus.ADMITTED]

    def _settle_grows(self, plan: Plan, grants: Grants, flight: Flight) -> None:
        for handle in grants.preempted_handles:
            self.requests[handle].drop()
        new = iter(grants.grow_new_block_ids)
        granted = zip(grants.grow_num_tokens, grants.grow_num_new_blocks, strict=True)
        for handle, want, (num_tokens, num_new) in zip(plan.grows.handles, plan.grows.wants, granted, strict=True):
            assert num_tokens <= want
            if num_tokens:
                request = self.requests[handle]
                request.table += self._unread([next(new) for _ in range(num_new)])
                self._advance(request, num_tokens, flight)
        assert next(new, None) is None

    def _settle_admissions(self, grants: Grants, flight: Flight) -> None:
        for admission in grants.admissions:
            if admission.status is AdmissionStatus.ADMITTED:
                request = self.requests[admission.handle]
                request.table = list(admission.block_ids)
                request.num_computed = admission.num_cached_tokens
                request.num_erasures = self.num_erasures[request.extras.namespace]
                self._unread(request.table[admission.num_cached_tokens // B :])
                self._advance(request, admission.num_granted_tokens, flight)
        self.worker.send(flight)

    def _unread(self, block_ids: list[int]) -> list[int]:
        """Blocks that are given out are read by nobody outside the step order."""
        assert all(read.isdisjoint(block_ids) for read in self.fences.values())
        return block_ids

    def _advance(self, request: ModelRequest, num_tokens: int, flight: Flight) -> None:
        start, request.num_computed = request.num_computed, request.num_computed + num_tokens
        assert -(-request.num_computed // B) == len(request.table)
        flight.writes.extend(
            Write(request.table[position // B], position % B, request.content(position))
            for position in range(start, request.num_computed)
        )
        flight.reaches[request.handle] = Reach(request.epoch, request.num_computed)

    def _check_hits(self, grants: Grants) -> None:
        """Every hit position holds what its request says, by a plan up to this one, and from after any erasure."""
        for admission in grants.admissions:
            request = self.requests[admission.handle]
            for position in range(min(admission.num_cached_tokens, len(admission.block_ids) * B)):
                block_id = admission.block_ids[position // B]
                assert self.worker.content[block_id][position % B] == request.content(position)

    def _declare(self, choose: Choices, num_prompt: int) -> Declaration:
        extras = choose.one_of(EXTRAS)
        tokens = [choose.below(2) for _ in range(num_prompt + NUM_OUTPUTS)]
        request = ModelRequest(self.num_handles, tokens, extras, num_prompt, num_prompt)
        self.requests[request.handle] = request
        self.num_handles += 1
        self.keys_of(tokens, extras)
        return Declaration(handle=request.handle, token_ids=tokens[:num_prompt], identity=Identity(extras=extras))

    def _commits(self, requests: list[ModelRequest]) -> Commits:
        """Every id that is known and not yet told."""
        new = [r.tokens[r.num_committed : r.num_revealed] for r in requests]
        for request in requests:
            request.num_committed = request.num_revealed
        return Commits(
            handles=[r.handle for r in requests],
            num_acked_tokens=[r.num_acked for r in requests],
            num_new_tokens=[len(token_ids) for token_ids in new],
            new_token_ids=[token_id for token_ids in new for token_id in token_ids],
        )

    def _frees(self, requests: list[ModelRequest]) -> Frees:
        """Released twice each, and every earlier epoch once more: neither may do anything."""
        again = [r for r in self.requests.values() if r.epoch > 0]
        handles = [r.handle for r in (*requests, *requests, *again)]
        epochs = [*(r.epoch for r in (*requests, *requests)), *(r.epoch - 1 for r in again)]
        return Frees(handles=handles, epochs=epochs)
