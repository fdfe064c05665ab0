"""Workers, their schedulers and one KV cache service: the real cores, wired by function calls, with all that can fail.

Time does not pass by itself and nothing runs at once, so every interleaving is a list of calls.
"""

import copy
from array import array
from collections.abc import Iterator, Sequence

from kvcache_service.core.cached_prefixes import CachedPrefixes
from kvcache_service.core.errors import PinQuotaExceeded
from kvcache_service.core.kv_cache_manager import KVCacheManager
from kvcache_service.core.pins import PinName
from kvcache_service.core.pools import Pools
from kvcache_service.core.restore import Records
from scheduler_service.core import placement, rejection
from scheduler_service.core.outcome import Update
from scheduler_service.core.plan import Grants, Plan, StepResult, StepStatus
from scheduler_service.core.policy import Policy
from scheduler_service.core.request import SET_ASIDE, Entry, Request, Status
from tests.joint.records import opening_of, recorded
from tests.joint.site import FINGERPRINT, Sent, Settings, Site
from tests.scheduler_service.core.rig import declared, extras_of, figures_of, granted_of, kv_identity, kv_plan


class World:
    """Requests go in by `submit`; every other call lets one thing happen."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pools = Pools(caching=settings.caching)
        self.requests: dict[str, Request] = {}
        self.emitted: dict[str, list[int]] = {}
        self.num_ends: dict[str, int] = {}
        self.num_drafts = 0
        self.moved: set[Request] = set()  # from a worker that was lost, to the front of another's queue
        self.num_restored = 0
        self.fences: set[str] = set()
        self._num_incarnations = 0
        self.sites: list[Site] = [self._new_site(f"w{number}") for number in range(settings.num_sites)]

    def submit(self, request: Request) -> bool:
        """Place a request; False if it is refused."""
        try:
            self._place(request, Entry.NEW)
        except rejection.Rejected:
            return False
        self.requests[request.request_id] = request
        self.emitted[request.request_id] = []
        self.num_ends[request.request_id] = 0
        return True

    def abort(self, request_id: str) -> None:
        for site in self.sites:
            if site.core.abort(request_id) is not None:
                self.num_ends[request_id] += 1

    def set_aside(self, request: Request) -> None:
        """A waiting request needs a grammar first."""
        for site in self.sites:
            if request.status is Status.WAITING and site.core.get(request.request_id) is request:
                site.core.set_aside(request.request_id, Status.WAITING_FOR_GRAMMAR)

    def set_all_ready(self) -> None:
        """Every grammar is there."""
        for site in self.sites:
            for request in site.core.waiting:
                if request.status in SET_ASIDE:
                    site.core.set_ready(request.request_id)

    def offer_drafts(self, request: Request, token_ids: Sequence[int]) -> None:
        request.offer_drafts(token_ids)
        self.num_drafts += len(request.drafts)

    def manager(self, site: Site) -> KVCacheManager:
        return self.pools.get(site.key).manager

    def plan(self, site: Site, *, is_kv_ready: bool = True) -> bool:
        """Plan, ask, settle and send; False if there is nothing to plan."""
        plan = site.core.schedule(is_kv_ready=is_kv_ready)
        if plan is None:
            return False
        self._settle(site, self._ask(site, plan) if plan.needs_answer else None)
        site.num_plans += 1
        if plan.needs_answer and site.num_plans % self.settings.record_every == 0:
            site.record = recorded(self.pools.get(site.key))
        return True

    def lose_answer(self, site: Site, *, is_applied: bool, is_asked_again: bool) -> None:
        """A plan whose answer does not come: asked again with the same bytes, or given up and the pool opened anew."""
        plan = site.core.schedule()
        if plan is None:
            return
        if not plan.needs_answer:
            site.core.abandon()
            return
        if is_applied:
            self._ask(site, plan)
        if is_asked_again:
            self._settle(site, self._ask(site, plan))
        else:
            site.core.abandon()
            self.reopen(site)

    def run_step(self, site: Site) -> None:
        """The worker runs the oldest step; its result comes, twice."""
        sent = site.sent.popleft()
        sampled = site.worker.run_with(sent.step, sent.drafts, is_exact=not self.num_drafts)
        result = StepResult(seq=sent.step.seq, token_ids=sampled.token_ids, num_tokens=sampled.num_tokens)
        self._updated(site.core.update(result))
        assert not site.core.update(result).outputs

    def fail_step(self, site: Site, status: StepStatus) -> None:
        """The oldest step does not end well (VOID: it is not run at all), and the later ones are void."""
        sent = site.sent.popleft()
        if status is StepStatus.FAULT:
            site.worker.run_with(sent.step, sent.drafts, is_faulty=True)
        self._updated(site.core.update(StepResult(seq=sent.step.seq, status=status)))
        while site.sent:
            seq = site.sent.popleft().step.seq
            self._updated(site.core.update(StepResult(seq=seq, status=StepStatus.VOID)))

    def reopen(self, site: Site) -> None:
        """A new session of the same incarnation: the tables in use are declared."""
        site.session += 1
        tables = [declared(table) for table in site.core.declare_tables()]
        opening = opening_of(site.core.next_opening())
        num_blocks = self.settings.num_blocks
        pool = self.pools.open(site.key, num_blocks, fingerprint=FINGERPRINT, tables=tables, opening=opening)
        site.core.pool_reopened(figures_of(pool.manager.figures))

    def restart_kv(self, *, is_restored: bool) -> None:
        """The KV cache service starts anew; it knows nothing, or what Redis knew a while ago."""
        self.pools, self.fences = Pools(caching=self.settings.caching), set()
        if is_restored:
            self.pools.records = Records(copy.deepcopy(site.record) for site in self.sites if site.record is not None)
        for site in self.sites:
            self.reopen(site)
            self.num_restored += self.pools.get(site.key).restored.num_blocks

    def pin(self, site: Site, request: Request, *, expires_s: float) -> None:
        """Keep what is cached of a request's prompt, as far as the quota reaches."""
        extras = extras_of(request.identity)
        keys = self.manager(site).prefix_keys(request.token_ids[: request.num_prompt_tokens], extras)
        name = PinName(extras.namespace, request.request_id)
        try:
            self.manager(site).check_pin(name, keys)
        except PinQuotaExceeded:
            return
        self.manager(site).pin(name, keys, expires_s=expires_s)

    def expire_pins(self, site: Site, now_s: float) -> None:
        if self.manager(site).expire_pins(now_s):
            site.core.ask_again()

    def fence(self, site: Site, reader_id: str, request: Request) -> None:
        """A reader outside the step order needs a request's blocks, also when they are freed meanwhile."""
        self.manager(site).fence(reader_id, request.block_ids)
        self.fences.add(reader_id)

    def unfence(self, reader_id: str) -> None:
        self.fences.discard(reader_id)
        for site in self.sites:
            self.manager(site).unfence(reader_id)
            site.core.ask_again()

    def erase(self, tenant: str) -> None:
        for site in self.sites:
            self.manager(site).erase_namespace(tenant.encode())
            site.record = None if site.record is None or site.record.erase(tenant.encode()) else site.record
            site.core.ask_again()

    def lose_worker(self, site: Site, *, num_run: int) -> None:
        """Some of its steps may have run, but no result comes any more; its requests go where there is least to do."""
        for _ in range(min(num_run, len(site.sent))):
            sent = site.sent.popleft()
            site.worker.run_with(sent.step, sent.drafts, is_exact=not self.num_drafts)
        requests, poisoned = site.core.worker_lost()
        self._ended(poisoned)
        self.pools.close(site.name, site.incarnation)
        self.sites[self.sites.index(site)] = self._new_site(site.name)
        self.moved.update(requests)
        for request in reversed(requests):
            if not self._place(request, Entry.BACK):
                self._ended([request])

    def move_waiting(self, site: Site) -> None:
        """Those that wait are placed anew."""
        requests = site.core.movable()
        site.core.withdraw(requests)
        for request in requests:
            if not self._place(request, Entry.MOVED):
                self._ended([request])

    def run_to_end(self, max_rounds: int) -> None:
        """Nothing fails any more: everybody must end."""
        for _ in range(max_rounds):
            is_moving = False
            for site in self.sites:
                is_moving |= self.plan(site)
                if site.sent:
                    self.run_step(site)
                    is_moving = True
            if not is_moving:
                return
        raise AssertionError(f"{[r.request_id for r in self.open_requests()]} still run after {max_rounds} rounds")

    def open_requests(self) -> Iterator[Request]:
        return (request for request in self.requests.values() if not request.is_finished)

    def _new_site(self, name: str) -> Site:
        self._num_incarnations += 1
        site = Site(name, self.settings, incarnation=self._num_incarnations)
        self.reopen(site)
        return site

    def _place(self, request: Request, entry: Entry) -> bool:
        found = CachedPrefixes(self.pools).match(array("I", request.token_ids), kv_identity(request.identity))
        matches = {match.pool_id: match.num_cached_tokens for match in found}
        candidates = [
            placement.Candidate(
                worker_id=site.name,
                num_uncached_tokens=request.num_known_tokens - matches[site.name],
                num_queued_tokens=site.core.num_queued_tokens,
                num_requests=site.core.num_requests,
            )
            for site in self.sites
        ]
        chosen = placement.choose(candidates, (0.0, 0.99))
        return next(s for s in self.sites if s.name == chosen.worker_id).core.submit(request, entry)

    def _ask(self, site: Site, plan: Plan) -> Grants:
        """The pool's answer; asked twice, it is the same and changes nothing."""
        pool, asked = self.pools.get(site.key), kv_plan(plan)
        digest = repr(asked).encode()
        grants = pool.plan_step(asked, digest)
        assert pool.plan_step(asked, digest) is grants
        return granted_of(grants)

    def _settle(self, site: Site, grants: Grants | None) -> None:
        offered = {request.handle: request.drafts for request in site.core.running}
        never_ran = [request for request in site.core.waiting if not request.was_admitted]
        settlement = site.core.settle(grants)
        self._ended(settlement.finished)
        self._check_order(never_ran)
        if settlement.step is None:
            return
        assert settlement.sent is not None
        rows = settlement.sent.rows
        limits = self.settings.limits
        assert 0 < sum(row.num_tokens for row in rows) <= limits.max_num_batched_tokens
        assert self.num_drafts or len(rows) <= limits.max_num_seqs
        drafts = {row.request.handle: offered[row.request.handle][: row.num_drafts] for row in rows if row.num_drafts}
        site.sent.append(Sent(settlement.step, drafts))
        assert len(site.sent) <= self.settings.window

    def _check_order(self, never_ran: Sequence[Request]) -> None:
        """FCFS: nobody is let in for the first time while one who came before waits for the first time."""
        if self.settings.policy is not Policy.FCFS:
            return
        never_ran = [r for r in never_ran if r not in self.moved and r.status not in SET_ASIDE]
        still = [request.arrival for request in never_ran if not request.was_admitted and not request.is_finished]
        entered = [request.arrival for request in never_ran if request.was_admitted]
        assert not entered or not still or max(entered) < min(still), f"{max(entered)} went before {min(still)}"

    def _updated(self, update: Update) -> None:
        for output in update.outputs:
            self.emitted[output.request.request_id] += output.token_ids
        self._ended(update.finished)

    def _ended(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.num_ends[request.request_id] += 1
