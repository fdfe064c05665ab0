"""What a pool does with plans, told in plain lists: slow, and meant to be read as the specification.

The pool proper is compared with it after every plan. Knows nothing of hashes, pins, fences and erased namespaces.
"""

from dataclasses import dataclass, field

from kvcache_service.core.hash_extras import NO_EXTRAS
from kvcache_service.core.plan import Admission, AdmissionStatus, Commits, Plan
from kvcache_service.core.request import Identity
from tests.kvcache_service.core.list_blocks import ListBlocks, Prefix, Setup


@dataclass(slots=True, eq=False)
class ListRequest:
    """A declared request; it runs while it has a table."""

    tokens: list[int]
    identity: Identity
    epoch: int
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_acked_tokens: int = 0
    num_named_blocks: int = 0  # leading blocks of the table that are reserved or committed
    num_refusals: int = 0  # since the last admission


@dataclass(slots=True, eq=False)
class Reservation:
    """The blocks that one step fills for one request."""

    step: int
    request: ListRequest
    blocks: dict[int, int]  # index in the table -> block id, ascending


@dataclass(slots=True)
class Outcome:
    """What a plan got."""

    budget: int  # tokens that are left
    num_tokens: list[int]  # per grow
    new_block_ids: dict[int, list[int]] = field(default_factory=dict)  # by index of the grow
    preempted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)


class ListPool:
    """The blocks of one worker, and the requests of its scheduler."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.size = setup, setup.block_size
        self.blocks = ListBlocks(setup)
        self.requests: dict[int, ListRequest] = {}
        self.running: list[int] = []
        self.reservations: list[Reservation] = []  # of steps that are neither acknowledged nor failed
        self.num_tokens_asked = [0, 0]  # by first admissions, and by those after a preemption
        self.num_tokens_found = [0, 0]

    def plan(self, plan: Plan) -> Outcome:
        """Apply the ops in their order."""
        self.blocks.events = []
        self._ack(plan.acked_step)
        self._commit(plan.commits)
        for handle, epoch in zip(plan.frees.handles, plan.frees.epochs, strict=True):
            if handle in self.running and self.requests[handle].epoch == epoch:
                self._release(handle)
        for handle in plan.forgotten_handles:
            del self.requests[handle]
        if plan.failed_step:
            self._fail(plan.failed_step)
        for declared in plan.declares:
            self.requests[declared.handle] = ListRequest(list(declared.token_ids), declared.identity, declared.epoch)
        outcome = Outcome(plan.token_budget, [0] * len(plan.grows.handles))
        self._grow(plan, outcome)
        self._admit(plan, outcome)
        return outcome

    def _ack(self, step: int) -> None:
        """Steps up to this one are written: what they reserved, and was not given out again since, is committed."""
        for reservation in [made for made in self.reservations if made.step <= step]:
            self.reservations.remove(reservation)
            written = self.blocks.confirm(reservation, reservation.blocks)
            self.blocks.tell_stored(written, reservation.request.tokens)

    def _commit(self, commits: Commits) -> None:
        """Ids became known, and full blocks that are written but have no name yet get one."""
        start = 0
        for handle, num_acked, num_new in zip(
            commits.handles, commits.num_acked_tokens, commits.num_new_tokens, strict=True
        ):
            request = self.requests[handle]
            request.tokens += commits.new_token_ids[start : start + num_new]
            start += num_new
            if request.block_table:
                request.num_acked_tokens = max(request.num_acked_tokens, num_acked)
                named = self._name_up_to(request, request.num_acked_tokens)
                self.blocks.tell_stored(named, request.tokens)

    def _release(self, handle: int) -> None:
        """Back to waiting; the tokens stay, and a late free finds another epoch."""
        request = self.requests[handle]
        self.running.remove(handle)
        self.blocks.release(request.block_table)
        request.block_table = []
        request.epoch += 1
        request.num_computed_tokens = request.num_acked_tokens = request.num_named_blocks = 0

    def _fail(self, step: int) -> None:
        """This step and later ones never ran: what they reserved is withdrawn, the last block first."""
        for reservation in sorted(self.reservations, key=lambda made: made.step)[::-1]:
            if reservation.step >= step:
                self._withdraw(reservation)
        for request in self.requests.values():
            names = [self.blocks.names[block_id] for block_id in request.block_table]
            while request.num_named_blocks and names[request.num_named_blocks - 1] is None:
                request.num_named_blocks -= 1

    def _grow(self, plan: Plan, outcome: Outcome) -> None:
        """Running requests in order; while blocks are missing for one, the next victim that still runs is preempted."""
        victims, wants = list(plan.grows.victims), plan.grows.wants or [1] * len(plan.grows.handles)
        for index, (handle, want) in enumerate(zip(plan.grows.handles, wants, strict=True)):
            if handle not in self.running or outcome.budget == 0:
                continue
            request, num_tokens = self.requests[handle], min(want, outcome.budget)
            num_missing = self._num_blocks(request.num_computed_tokens + num_tokens) - len(request.block_table)
            while num_missing > len(self.blocks.free) and victims and handle in self.running:
                victim = victims.pop(0)
                if victim in self.running:
                    self._preempt(victim, plan, outcome)
            if handle not in self.running:
                break  # it was its own victim
            if num_missing > len(self.blocks.free):
                outcome.refused.append(handle)
                continue
            outcome.budget -= num_tokens
            outcome.num_tokens[index] = num_tokens
            outcome.new_block_ids[index] = self.blocks.take(num_missing)
            request.block_table += outcome.new_block_ids[index]
            self._advance(request, num_tokens, step=plan.step)

    def _preempt(self, handle: int, plan: Plan, outcome: Outcome) -> None:
        """A victim gives back what it reserved and was granted in this plan."""
        for reservation in self.reservations[::-1]:
            if reservation.request is self.requests[handle] and reservation.step == plan.step:
                self._withdraw(reservation)
        self._release(handle)
        outcome.preempted.append(handle)
        if handle in plan.grows.handles:
            index = plan.grows.handles.index(handle)
            outcome.budget += outcome.num_tokens[index]
            outcome.num_tokens[index] = 0
            outcome.new_block_ids.pop(index, None)

    def _admit(self, plan: Plan, outcome: Outcome) -> None:
        """Waiting requests in order: after a preemption nobody, after a refusal nobody else."""
        is_over = bool(outcome.preempted)
        for index, handle in enumerate(plan.admits.handles):
            if is_over or outcome.budget == 0 or index >= plan.max_admissions:
                outcome.admissions.append(Admission(handle=handle, status=AdmissionStatus.NOT_TRIED))
                continue
            admission = self._admit_one(plan, index, budget=outcome.budget)
            outcome.admissions.append(admission)
            outcome.budget -= admission.num_granted_tokens
            is_over = admission.status is AdmissionStatus.REFUSED

    def _admit_one(self, plan: Plan, index: int, *, budget: int) -> Admission:
        """The blocks of the longest known prefix, and new ones for the rest; all must fit, or nothing changes."""
        handle, num_known = plan.admits.handles[index], plan.admits.num_known_tokens[index]
        request, num_evicted = self.requests[handle], self.blocks.num_evicted
        hits = self._hits(request, num_known)
        num_cached = len(hits) * self.size
        granted = min(num_known - num_cached, plan.long_prefill_token_threshold or num_known)
        if plan.whole_prompts_only and granted > budget:
            return Admission(handle=handle, status=AdmissionStatus.REFUSED, num_known_tokens=num_known)
        granted = min(granted, budget)
        num_blocks = self._num_blocks(num_known if self.setup.full_sequence_gate else num_cached + granted)
        num_taken = num_blocks - len(hits) + self.blocks.num_idle(hits)
        is_admitted = num_taken + plan.admits.num_watermark_blocks[index] <= len(self.blocks.free)
        request.num_refusals = 0 if is_admitted else request.num_refusals + 1
        if is_admitted:
            self.running.append(handle)
            self._count(request, num_known, num_cached)
            self._start(request, hits, num_cached + granted)
            self._advance(request, granted, step=plan.step)
        return Admission(
            handle=handle,
            status=AdmissionStatus.ADMITTED if is_admitted else AdmissionStatus.REFUSED,
            num_cached_tokens=num_cached,
            num_granted_tokens=granted if is_admitted else 0,
            block_ids=tuple(request.block_table),
            num_known_tokens=num_known,
            num_evicted_blocks=self.blocks.num_evicted - num_evicted,
            num_refusals=request.num_refusals,
        )

    def _hits(self, request: ListRequest, num_known: int) -> list[int]:
        """The first copy of each leading block, reserved ones too; one token at least is left to compute."""
        hits: list[int] = []
        if self.setup.caching and not request.identity.is_bypassing_cache:
            for index in range((num_known - 1) // self.size):
                copies = self.blocks.copies.get(self._prefix(request, index))
                if copies is None:
                    break
                hits.append(copies[0])
        return hits

    def _count(self, request: ListRequest, num_known: int, num_cached: int) -> None:
        if self.setup.caching and not request.identity.is_bypassing_cache:
            self.num_tokens_asked[request.epoch > 0] += num_known
            self.num_tokens_found[request.epoch > 0] += num_cached

    def _start(self, request: ListRequest, hits: list[int], end: int) -> None:
        self.blocks.touch(hits)
        request.block_table = hits + self.blocks.take(self._num_blocks(end) - len(hits))
        request.num_named_blocks, request.num_computed_tokens = len(hits), len(hits) * self.size

    def _advance(self, request: ListRequest, num_tokens: int, *, step: int) -> None:
        """This step writes so many tokens; the blocks it fills are reserved, unless one before them has no name yet."""
        start = request.num_computed_tokens
        request.num_computed_tokens += num_tokens
        if request.num_named_blocks >= start // self.size:
            blocks = self._name_up_to(request, request.num_computed_tokens)
            reservation = Reservation(step, request, blocks)
            self.reservations.append(reservation)
            self.blocks.reserved.update(dict.fromkeys(blocks.values(), reservation))

    def _name_up_to(self, request: ListRequest, num_tokens: int) -> dict[int, int]:
        """Name the full blocks of known tokens up to a position that have no name: index -> block id."""
        named: dict[int, int] = {}
        end = min(num_tokens, len(request.tokens)) // self.size if self.setup.caching else 0
        for index in range(request.num_named_blocks, end):
            if self.blocks.names[request.block_table[index]] is None:
                named[index] = request.block_table[index]
                self.blocks.name(named[index], self._prefix(request, index))
        request.num_named_blocks = max(request.num_named_blocks, end)
        return named

    def _prefix(self, request: ListRequest, index: int) -> Prefix:
        """What this block of a request is named for; those of a public prefix are outside all namespaces."""
        tokens, extras = request.tokens[: (index + 1) * self.size], request.identity.extras
        return Prefix(tuple(tokens), NO_EXTRAS if index < extras.namespace_block else extras)

    def _withdraw(self, reservation: Reservation) -> None:
        self.reservations.remove(reservation)
        self.blocks.withdraw(reservation, reservation.blocks)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)
