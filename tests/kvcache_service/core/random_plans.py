"""Plans that a scheduler may send, drawn from a seed. Looks at the list pool to know who runs and how far each came.

Blocks and tokens are few, so that prefixes are shared, copied and evicted all the time. Plans fail after those before
them were acknowledged in part, tables are freed twice or too late, victims come in any order.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcache_service.core.hash_extras import Extras
from kvcache_service.core.plan import Admits, Commits, Declaration, Frees, Grows, Plan
from kvcache_service.core.request import Identity
from tests.kvcache_service.core.list_blocks import Setup
from tests.kvcache_service.core.list_pool import ListPool, ListRequest

MAX_REQUESTS = 7
NUM_TOKENS = 2  # different ones
PROMPTS = [[(index * index + family) % 3 % NUM_TOKENS + 1 for index in range(60)] for family in range(2)]
IDENTITIES = (
    Identity(),
    Identity(extras=Extras(salt="x")),
    Identity(extras=Extras(namespace=b"n" * 16)),
    Identity(extras=Extras(namespace=b"n" * 16, namespace_block=1)),  # its first block is public
    Identity(is_bypassing_cache=True),
)


class Reach(NamedTuple):
    """How far a request comes with a step."""

    step: int
    num_tokens: int


class Table(NamedTuple):
    """A request, in one of its epochs."""

    handle: int
    epoch: int


class Commit(NamedTuple):
    """What became known of a request."""

    num_acked_tokens: int
    new_token_ids: list[int]


@dataclass(slots=True)
class Turn:
    """What is settled of the plan that is being drawn."""

    acked_step: int
    failed_step: int
    num_known: dict[int, int]  # tokens of each request
    commits: dict[int, Commit] = field(default_factory=dict)
    frees: list[Table] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    declares: list[Declaration] = field(default_factory=list)


class RandomPlans:
    """One scheduler and its worker, of which up to `window` plans are neither acknowledged nor failed."""

    def __init__(self, seed: int) -> None:
        self._draw = draw = random.Random(seed)
        self.setup = Setup(
            num_blocks=draw.choice((2, 3, 4, 5, 6, 7, 9, 14)),
            block_size=draw.choice((1, 1, 2, 2, 3, 4)),
            caching=self._happens(0.9),
            full_sequence_gate=self._happens(0.7),
        )
        self._window = draw.choice((1, 2))
        self._share_ending = draw.choice((0.03, 0.15, 0.4))  # of those that run, in each plan
        self._identities = draw.choices(IDENTITIES, k=draw.choice((1, 2, 4)))
        self._step = 0
        self._settled_step = 0  # the last that was acknowledged or failed
        self._num_handles = 0
        self._reaches: dict[Table, list[Reach]] = {}

    def plan(self, pool: ListPool) -> Plan:
        """The next plan, for a pool that has applied those before it."""
        draw = self._draw
        self._note_reaches(pool)
        self._step += 1
        turn = self._acks(pool)
        self._settle(pool, turn)
        freed = {table.handle for table in turn.frees if pool.requests[table.handle].epoch == table.epoch}
        running = [handle for handle in pool.running if handle not in freed]
        waiting = [handle for handle in turn.num_known if handle not in running]
        commits = turn.commits.values()
        return Plan(
            step=self._step,
            acked_step=turn.acked_step,
            commits=Commits(
                handles=list(turn.commits),
                num_acked_tokens=[commit.num_acked_tokens for commit in commits],
                num_new_tokens=[len(commit.new_token_ids) for commit in commits],
                new_token_ids=[token_id for commit in commits for token_id in commit.new_token_ids],
            ),
            frees=Frees(handles=[free.handle for free in turn.frees], epochs=[free.epoch for free in turn.frees]),
            forgotten_handles=turn.forgotten,
            failed_step=turn.failed_step,
            declares=turn.declares,
            token_budget=draw.choice((1, 2, 5, 10, 100, 100)),
            max_admissions=draw.choice((0, 1, 2, 9, 9)),
            long_prefill_token_threshold=draw.choice((0, 0, 0, 1, 4)),
            whole_prompts_only=self._happens(0.15),
            grows=self._grows(pool, turn, running),
            admits=self._admits(turn, waiting),
        )

    def _note_reaches(self, pool: ListPool) -> None:
        """Remember which requests the last plan advanced, and how far."""
        for handle in pool.running:
            request = pool.requests[handle]
            reaches = self._reaches.setdefault(Table(handle, request.epoch), [])
            if not reaches or reaches[-1].num_tokens != request.num_computed_tokens:
                reaches.append(Reach(self._step, request.num_computed_tokens))

    def _acks(self, pool: ListPool) -> Turn:
        """The worker got on; sometimes a plan failed, and those behind it with it."""
        last, failed_step = self._step - 1, 0
        if last > self._settled_step and self._happens(0.07):
            failed_step = self._draw.randint(self._settled_step + 1, last)
            acked_step = self._draw.randint(self._settled_step, failed_step - 1)
            self._settled_step = last
        else:
            acked_step = max(self._settled_step, last - self._draw.randrange(self._window))
            self._settled_step = acked_step
        return Turn(acked_step, failed_step, {handle: len(known.tokens) for handle, known in pool.requests.items()})

    def _settle(self, pool: ListPool, turn: Turn) -> None:
        """What the scheduler heard since the last plan."""
        for handle, request in pool.requests.items():
            commit = self._commit(handle, request, turn)
            if commit is not None:
                turn.commits[handle] = commit
                turn.num_known[handle] += len(commit.new_token_ids)
            self._free(handle, request, turn)
        for handle in turn.forgotten:
            del turn.num_known[handle]
        if len(turn.num_known) < MAX_REQUESTS:
            turn.declares = [self._declare() for _ in range(self._draw.randint(0, 3))]
        turn.num_known.update((declared.handle, len(declared.token_ids)) for declared in turn.declares)

    def _commit(self, handle: int, request: ListRequest, turn: Turn) -> Commit | None:
        """Acknowledged positions, and the token behind the last one; the result of a preempted request may be late."""
        new_token_ids = [self._draw.randint(1, NUM_TOKENS)]
        if not request.block_table:
            return Commit(0, new_token_ids) if request.epoch and self._happens(0.05) else None
        reaches = self._reaches[Table(handle, request.epoch)]
        num_acked = max((reach.num_tokens for reach in reaches if reach.step <= turn.acked_step), default=0)
        if num_acked >= len(request.tokens) and self._happens(0.9):
            return Commit(num_acked, new_token_ids)
        return Commit(num_acked, []) if self._happens(0.9) else None

    def _free(self, handle: int, request: ListRequest, turn: Turn) -> None:
        """Ended, or in a failed plan: freed, maybe twice. A free of an earlier epoch may be late."""
        reaches = self._reaches.get(Table(handle, request.epoch), [])
        is_lost = bool(turn.failed_step) and any(reach.step >= turn.failed_step for reach in reaches)
        if request.block_table and (is_lost or self._happens(self._share_ending)):
            turn.frees += [Table(handle, request.epoch)] * (2 if self._happens(0.3) else 1)
            if self._happens(0.2):
                turn.forgotten.append(handle)
        elif not request.block_table and self._happens(0.15):
            turn.forgotten.append(handle)
        elif request.epoch and self._happens(0.1):
            turn.frees.append(Table(handle, request.epoch - 1))

    def _declare(self) -> Declaration:
        """A prompt that begins like others, and fits into the pool or nearly."""
        draw, setup = self._draw, self.setup
        self._num_handles += 1
        num_blocks = draw.randint(1, draw.choice((2, setup.num_blocks)))
        shared = draw.choice(PROMPTS)[: num_blocks * setup.block_size]
        own = [draw.randint(1, NUM_TOKENS) for _ in range(draw.choice((0, 0, draw.randint(1, setup.block_size))))]
        return Declaration(
            handle=self._num_handles,
            epoch=draw.choice((0, 0, 0, 0, 0, 2)),
            token_ids=shared + own,
            identity=draw.choice(self._identities),
        )

    def _grows(self, pool: ListPool, turn: Turn, running: list[int]) -> Grows:
        """Everything that is left, a chunk of it, or one or a few tokens beyond what is known; victims in any order."""
        draw = self._draw
        wants = {
            handle: want
            for handle in running
            if (want := self._want(turn.num_known[handle] - pool.requests[handle].num_computed_tokens))
        }
        handles = self._perhaps_shuffled(list(wants), 0.2)
        is_decode = all(want == 1 for want in wants.values()) and self._happens(0.5)
        victims = running[::-1] if self._happens(0.5) else draw.sample(running, draw.randint(0, len(running)))
        return Grows(handles=handles, wants=[] if is_decode else [wants[handle] for handle in handles], victims=victims)

    def _want(self, num_left: int) -> int:
        if num_left > 0 and self._happens(0.95):
            return num_left if self._happens(0.6) else self._draw.randint(1, num_left)
        if -2 < num_left <= 0 and self._window == 2 and self._happens(0.7):
            return 1  # its token is not known yet
        return self._draw.randint(1, 3) if self._happens(0.1) else 0

    def _admits(self, turn: Turn, waiting: list[int]) -> Admits:
        handles = self._perhaps_shuffled(waiting, 0.3)
        return Admits(
            handles=handles,
            num_known_tokens=[turn.num_known[handle] for handle in handles],
            num_watermark_blocks=[self._draw.choice((0, 0, 0, 0, 1, 2)) for _ in handles],
        )

    def _perhaps_shuffled(self, handles: list[int], share: float) -> list[int]:
        return self._draw.sample(handles, len(handles)) if self._happens(share) else handles

    def _happens(self, share: float) -> bool:
        return self._draw.random() < share
