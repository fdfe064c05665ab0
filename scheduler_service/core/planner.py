"""Decides what the next step wishes for: who moves, how far, and who is let in. Changes nothing.

Prefill, decode and chunks are one thing here: `want = target - position`. What is left of it after budget and blocks
is the KV cache service's answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from scheduler_service.core.flight import Flight
from scheduler_service.core.plan import Admits, Declare, Grows, Limits, Plan, Pool
from scheduler_service.core.policy import Policy, displaced, victims
from scheduler_service.core.request import Request, Status
from scheduler_service.core.roster import Roster

MAX_DECLARED_TOKENS: Final = 65536  # ids of new requests in one plan: 256 KiB, and some milliseconds of hashing


@dataclass(slots=True)
class Row:
    """A running request and how many tokens it wishes to advance."""

    request: Request
    num_tokens: int

    @property
    def want(self) -> int:
        """Tokens from where the KV cache service believes the request to be; steps it was not asked about included."""
        return self.request.num_computed_tokens + self.num_tokens - self.request.num_told_tokens

    def is_inside(self, block_size: int) -> bool:
        """Whether it ends before the end of the blocks it holds."""
        end = self.request.num_computed_tokens + self.num_tokens
        return end < len(self.request.block_ids) * block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """A plan and what the scheduler must remember of it until it is settled."""

    plan: Plan
    rows: Sequence[Row]
    admits: Sequence[Request]
    displaced: Request | None


class Planner:
    """Reads the roster and the flight."""

    def __init__(self, roster: Roster, flight: Flight, *, limits: Limits, pool: Pool, policy: Policy) -> None:
        self._roster = roster
        self._flight = flight
        self._limits = limits
        self._pool = pool
        self._policy = policy

    def wishes(self, *, is_kv_ready: bool, may_admit: bool) -> Wishes | None:
        """The next plan, or None when there is nothing to do and nothing to tell."""
        slots = self._num_slots()
        solo = self._solo(slots)
        rows = self._rows(self._movers(solo))
        if not is_kv_ready:
            rows = self._within_budget([row for row in rows if row.is_inside(self._pool.block_size)])
            return self._local(rows) if rows else None
        loser = self._displaced(slots) if may_admit and solo is None else None
        admits = self._admits(solo, slots + (loser is not None)) if may_admit else []
        has_news = bool(self._roster.pending) or self._flight.has_untold_acks
        if not admits and not has_news and rows:
            bounded = self._within_budget(rows)
            if all(row.is_inside(self._pool.block_size) for row in bounded):
                return self._local(bounded)
        if not rows and not admits and not has_news:
            return None
        return self._asking([row for row in rows if row.request is not loser], admits, loser)

    def _solo(self, slots: int) -> Request | None:
        """The suspect that must be alone in its steps until it brings a new token; the others pause, blocks kept."""
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

    def _rows(self, requests: Sequence[Request]) -> list[Row]:
        threshold = self._limits.long_prefill_token_threshold
        return [Row(r, wanted) for r in requests if (wanted := r.num_wanted_tokens(threshold)) > 0]

    def _within_budget(self, rows: Sequence[Row]) -> list[Row]:
        """Share the budget out here, in order, where the KV cache service does not."""
        left, bounded = self._limits.max_num_batched_tokens, []
        for row in rows:
            row.num_tokens = min(row.num_tokens, left)
            left -= row.num_tokens
            if row.num_tokens > 0:
                bounded.append(row)
        return bounded

    def _num_slots(self) -> int:
        """Requests that may be let in; those whose every token is planned no longer count."""
        return self._limits.max_num_seqs - sum(not request.is_fully_planned for request in self._roster.running)

    def _displaced(self, slots: int) -> Request | None:
        head = self._roster.waiting.head()
        if not self._limits.preempts_for_slots or slots > 0 or head is None or head.num_in_flight:
            return None
        return displaced(self._policy, self._roster.running, head)

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

    def _local(self, rows: list[Row]) -> Wishes:
        """A step that the KV cache service need not be asked about: it learns of it with the next plan."""
        plan = Plan(step=self._flight.last_step, needs_answer=False)
        return Wishes(plan=plan, rows=rows, admits=(), displaced=None)

    def _asking(self, rows: list[Row], admits: list[Request], loser: Request | None) -> Wishes:
        budget = self._limits.max_num_batched_tokens
        untold = sum(row.want - row.num_tokens for row in rows)
        if untold and sum(row.num_tokens for row in rows) > budget:
            rows = self._within_budget(rows)
            untold = sum(row.want - row.num_tokens for row in rows)
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
            token_budget=budget + untold,
            max_admissions=len(admits),
            long_prefill_token_threshold=self._limits.long_prefill_token_threshold,
            whole_prompts_only=not self._limits.is_chunked_prefill,
            grows=self._grows(rows, loser),
            admits=self._admit_columns(admits),
        )
        return Wishes(plan=plan, rows=rows, admits=admits, displaced=loser)

    def _declares(self, admits: Sequence[Request]) -> list[Declare]:
        return [
            Declare(handle=r.handle, epoch=r.epoch, token_ids=tuple(r.token_ids), identity=r.identity)
            for r in admits
            if not r.is_declared
        ]

    def _grows(self, rows: Sequence[Row], loser: Request | None) -> Grows:
        asking = [(row.request.handle, want) for row in rows if (want := row.want) > 0]
        if not asking:
            return Grows()
        handles, wants = zip(*asking, strict=True)
        order = victims(self._policy, self._roster.running)
        return Grows(handles=handles, wants=wants, victims=[r.handle for r in order if r is not loser])

    def _admit_columns(self, admits: Sequence[Request]) -> Admits:
        reserve = int(self._limits.watermark * self._pool.num_blocks)
        is_busy = bool(self._roster.running)
        return Admits(
            handles=[request.handle for request in admits],
            num_known_tokens=[request.num_known_tokens for request in admits],
            num_watermark_blocks=[reserve if is_busy or place > 0 else 0 for place in range(len(admits))],
        )
