"""Decides what the next step wishes for: who moves, how far, and who is let in. Changes nothing.

Prefill, decode and chunks are one thing here: `want = target - position`. What is left of it after budget and blocks
is the KV cache service's answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final

from scheduler_service.core.figures import Figures
from scheduler_service.core.flight import Flight
from scheduler_service.core.plan import Admits, Declare, Grows, Limits, Plan, Pool
from scheduler_service.core.policy import Order
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster

MAX_DECLARED_TOKENS: Final = 65536  # ids of new requests in one plan: 256 KiB, and some milliseconds of hashing


_num_faults: Callable[[Request], int] = attrgetter("num_faults")


@dataclass(frozen=True, slots=True)
class Rows:
    """Running requests and how many tokens each wishes to advance: columns."""

    requests: list[Request]
    num_tokens: list[int]

    def __len__(self) -> int:
        return len(self.requests)

    def select(self, is_wanted: Callable[[Request, int], bool]) -> "Rows":
        """Some of them, in the same order."""
        kept = [row for row in zip(self.requests, self.num_tokens, strict=True) if is_wanted(*row)]
        return Rows([request for request, _ in kept], [num_tokens for _, num_tokens in kept])

    def within(self, budget: int) -> "Rows":
        """As far as the budget reaches, in order."""
        if sum(self.num_tokens) <= budget:
            return self
        bounded = Rows([], [])
        for request, num_tokens in zip(self.requests, self.num_tokens, strict=True):
            if budget == 0:
                break
            bounded.requests.append(request)
            bounded.num_tokens.append(min(num_tokens, budget))
            budget -= bounded.num_tokens[-1]
        return bounded

    def wants(self) -> list[int]:
        """Tokens from where the KV cache service believes each to be; steps it was not asked about included."""
        return [
            max(0, request.num_computed_tokens + num_tokens - request.num_told_tokens)
            for request, num_tokens in zip(self.requests, self.num_tokens, strict=True)
        ]

    def wants_of_growing(self, block_size: int) -> list[int]:
        """The same, but 0 for those who end before the end of the blocks they hold."""
        return [
            max(0, end - request.num_told_tokens)
            if (end := request.num_computed_tokens + num_tokens) >= len(request.block_ids) * block_size
            else 0
            for request, num_tokens in zip(self.requests, self.num_tokens, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Asked:
    """Who moves, what is asked of the KV cache service for each (0 = nothing), and whose blocks may be taken for it."""

    rows: Rows
    wants: Sequence[int]
    victims: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """A plan and what the scheduler must remember of it until it is settled."""

    plan: Plan
    rows: Rows
    wants: Sequence[int] = ()  # per row; 0 = it was not asked for, and moves as wished
    admits: Sequence[Request] = ()
    displaced: Request | None = None


class Planner:
    """Reads the roster, the flight and the figures."""

    def __init__(
        self, roster: Roster, flight: Flight, figures: Figures, *, limits: Limits, pool: Pool, order: Order
    ) -> None:
        self._roster = roster
        self._flight = flight
        self._figures = figures
        self._limits = limits
        self._pool = pool
        self._order = order

    def wishes(self, *, is_kv_ready: bool, may_admit: bool) -> Wishes | None:
        """The next plan, or None when there is nothing to do and nothing to tell."""
        slots = self._num_slots()
        solo = self._solo(slots)
        rows = self._rows(self._movers(solo))
        budget = self._limits.max_num_batched_tokens
        if not is_kv_ready:
            rows = rows.select(self._is_inside).within(budget)
            return self._local(rows) if rows else None
        loser = self._displaced(slots) if may_admit and solo is None else None
        admits = self._admits(solo, slots + (loser is not None)) if may_admit else []
        has_news = bool(self._roster.pending) or self._flight.has_untold_acks
        if not admits and not has_news and rows:
            bounded = rows.within(budget)
            if all(map(self._is_inside, bounded.requests, bounded.num_tokens)):
                return self._local(bounded)
        if not rows and not admits and not has_news:
            return None
        if loser is not None:
            rows = rows.select(lambda request, _: request is not loser)
        return self._asking(rows, admits, loser)

    def _solo(self, slots: int) -> Request | None:
        """The suspect that must be alone in its steps until it is cleared; the others pause, blocks kept."""
        if any(map(_num_faults, self._roster.running)):
            running = next((request for request in self._roster.running if request.is_suspect), None)
            if running is not None:
                return running
        head = self._roster.waiting.head()
        is_next = head is not None and head.is_suspect and slots > 0 and not self._roster.is_solo_refused
        return head if is_next else None

    def _movers(self, solo: Request | None) -> Sequence[Request]:
        if solo is None:
            return self._roster.running
        return [solo] if solo.status is Status.RUNNING else []

    def _rows(self, requests: Sequence[Request]) -> Rows:
        threshold = self._limits.long_prefill_token_threshold
        wanted = [request.num_wanted_tokens(threshold) for request in requests]
        rows = Rows(list(requests), wanted)
        return rows.select(lambda _, num_tokens: num_tokens > 0) if 0 in wanted else rows

    def _is_inside(self, request: Request, num_tokens: int) -> bool:
        """Whether it ends before the end of the blocks it holds."""
        return request.num_computed_tokens + num_tokens < len(request.block_ids) * self._pool.block_size

    def _num_slots(self) -> int:
        """Requests that may be let in, 0 if none waits; those whose every token is planned no longer count."""
        if not self._roster.waiting:
            return 0
        return self._limits.max_num_seqs - self._roster.num_occupied

    def _displaced(self, slots: int) -> Request | None:
        head = self._roster.waiting.head()
        if not self._limits.preempts_for_slots or slots > 0 or head is None or head.num_in_flight:
            return None
        return self._order.displaced(self._roster.running, head)

    def _admits(self, solo: Request | None, slots: int) -> list[Request]:
        """The head of the queue and those behind it; nobody is overtaken by being in a step still unanswered."""
        if slots <= 0:
            return []
        if solo is not None:
            is_turn = solo.status is not Status.RUNNING and not self._flight.steps
            return [solo] if is_turn else []
        candidates = takewhile(lambda r: not r.num_in_flight and not r.is_suspect, self._roster.waiting.ready())
        return list(self._within_declarations(islice(candidates, slots)))

    def _within_declarations(self, candidates: Iterator[Request]) -> Iterator[Request]:
        num_new = 0
        for request in candidates:
            if not request.is_declared:
                if num_new and num_new + request.num_known_tokens > MAX_DECLARED_TOKENS:
                    return
                num_new += request.num_known_tokens
            yield request

    def _local(self, rows: Rows) -> Wishes:
        """A step that the KV cache service need not be asked about: it learns of it with the next plan."""
        plan = Plan(step=self._flight.last_step, needs_answer=False)
        return Wishes(plan=plan, rows=rows)

    def _asking(self, rows: Rows, admits: list[Request], loser: Request | None) -> Wishes:
        asked = self._asked(rows, loser)
        pending = self._roster.pending
        acked = self._flight.acked_step
        plan = Plan(
            step=self._flight.last_step + 1,
            acked_step=min(acked, pending.failed_step - 1) if pending.failed_step else acked,
            commits=pending.commits(admits),
            frees=pending.frees(loser),
            forgotten_handles=tuple(pending.forgotten_handles),
            failed_step=pending.failed_step,
            declares=self._declares(admits),
            token_budget=self._limits.max_num_batched_tokens - sum(asked.rows.num_tokens) + sum(asked.wants),
            max_admissions=len(admits),
            long_prefill_token_threshold=self._limits.long_prefill_token_threshold,
            whole_prompts_only=not self._limits.is_chunked_prefill,
            grows=_grows(asked),
            admits=self._admit_columns(admits),
        )
        return Wishes(plan=plan, rows=asked.rows, wants=asked.wants, admits=admits, displaced=loser)

    def _declares(self, admits: Sequence[Request]) -> list[Declare]:
        return [
            Declare(handle=r.handle, epoch=r.epoch, token_ids=tuple(r.token_ids), identity=r.identity)
            for r in admits
            if not r.is_declared
        ]

    def _asked(self, rows: Rows, loser: Request | None) -> Asked:
        """While there are blocks for all only those who need one are asked for, and nobody's may be taken.

        Else everybody is, in order, as whoever loses blocks, or gets none, changes what those behind it get. Should
        others have taken blocks since the pool was last heard of, a grow is refused, and the next plan names victims.
        """
        block_size = self._pool.block_size
        bounded = rows.within(self._limits.max_num_batched_tokens)
        growing = bounded.wants_of_growing(block_size)
        num_most = sum(growing) // block_size + len(growing) - growing.count(0)
        if num_most <= self._figures.pool.num_free:
            return Asked(bounded, growing)
        if rows.wants() != rows.num_tokens:
            rows = bounded  # the service would count tokens of steps that it was not asked about
        order = self._order.victims(self._roster.running)
        return Asked(rows, rows.wants(), [request.handle for request in order if request is not loser])

    def _admit_columns(self, admits: Sequence[Request]) -> Admits:
        reserve = int(self._limits.watermark * self._pool.num_blocks)
        is_busy = bool(self._roster.running)
        return Admits(
            handles=[request.handle for request in admits],
            num_known_tokens=[request.num_known_tokens for request in admits],
            num_watermark_blocks=[reserve if is_busy or place > 0 else 0 for place in range(len(admits))],
        )


def _grows(asked: Asked) -> Grows:
    if not any(asked.wants):
        return Grows()
    rows = zip(asked.rows.requests, asked.wants, strict=True)
    return Grows(
        handles=[request.handle for request, want in rows if want],
        wants=[want for want in asked.wants if want],
        victims=asked.victims,
    )
